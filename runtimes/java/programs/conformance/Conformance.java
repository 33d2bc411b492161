package conformance;

import static conformance.Wrong.require;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import t2r.T2rException;

/** Conformance FOLDER: runs all cases of FOLDER/index.json. One line per case, then `N passed, N failed`; exit 1 if any failed. */
public final class Conformance {
    private Conformance() {}

    public static void main(String[] arguments) {
        Path folder = Path.of(arguments.length == 1 ? arguments[0] : "");
        try {
            Golden index = Golden.read(folder.resolve("index.json"));
            require(index.whole("golden") == 1, "golden files of another version");
            System.exit(conform(index.objects("cases"), folder) ? 0 : 1);
        } catch (IOException | Wrong | ClassCastException error) {
            System.err.println("file: expected a folder of golden files; received " + error + "; Conformance models/tiny");
            System.exit(2);
        }
    }

    private static boolean conform(List<Golden> cases, Path folder) {
        int passed = 0, failed = 0;
        for (Golden one : cases) {
            try {
                Cases.Case run = Cases.KINDS.get(one.text("kind"));
                require(run != null, "a kind of case that is not known, " + one.text("kind"));
                run.run(Golden.read(folder.resolve(one.text("file"))), folder);
                System.out.println("ok " + one.text("case"));
                passed++;
            } catch (IOException | Wrong | T2rException | ClassCastException error) {
                System.out.println("FAILED " + one.text("case") + ": " + error.getMessage());
                failed++;
            }
        }
        System.out.println(passed + " passed, " + failed + " failed");
        return passed > 0 && failed == 0;
    }
}
