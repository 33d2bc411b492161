package t2r;

import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.SymbolLookup;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;

/** Libraries in the jar: natives/PLATFORM has libt2r and what it needs, and natives/index names all files. */
@SuppressWarnings("restricted")
final class Natives {
    private Natives() {}

    /** This platform, as in "linux-x86-64". */
    static final String PLATFORM = system() + "-" + processor();

    private static String system() {
        String name = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        return name.startsWith("windows") ? "windows" : name.startsWith("mac") ? "macos" : name;
    }

    private static String processor() {
        return switch (System.getProperty("os.arch")) {
            case "amd64", "x86_64" -> "x86-64";
            case "aarch64" -> "arm64";
            case String other -> other;
        };
    }

    private static List<String> files() {
        try (InputStream index = Natives.class.getResourceAsStream("/natives/index")) {
            return index == null ? List.of() : new String(index.readAllBytes(), StandardCharsets.UTF_8).lines().toList();
        } catch (IOException error) {
            throw new AssertionError(error); // the jar cannot be read
        }
    }

    /** The platforms in the jar, as in "linux-x86-64, macos-arm64", or "none". */
    static String platforms() {
        List<String> found = files().stream().map(file -> file.substring(0, file.indexOf('/'))).distinct().toList();
        return found.isEmpty() ? "none" : String.join(", ", found);
    }

    /** Opens libt2r of this platform, unpacked into a temporary folder; null if the jar has none. */
    static SymbolLookup open() {
        List<String> own = files().stream().filter(file -> file.startsWith(PLATFORM + "/")).toList();
        if (own.isEmpty()) {
            return null;
        }
        try {
            Path folder = Files.createTempDirectory("t2r");
            try {
                for (String file : own) {
                    try (InputStream content = Natives.class.getResourceAsStream("/natives/" + file)) {
                        Files.copy(content, folder.resolve(file.substring(PLATFORM.length() + 1)));
                    }
                }
                return SymbolLookup.libraryLookup(folder.resolve(System.mapLibraryName("t2r")), Arena.global());
            } finally {
                remove(folder);
            }
        } catch (IOException | IllegalArgumentException error) {
            throw new UnsatisfiedLinkError("expected a temporary folder for the libraries in the jar; received "
                    + error + "; set -Djava.io.tmpdir=FOLDER, or -Dt2r.library=FILE");
        }
    }

    /** Removes the files, which a loaded library does not need any more; on Windows when the program ends. */
    private static void remove(Path folder) throws IOException {
        folder.toFile().deleteOnExit(); // after its files: the last one is deleted first
        for (Path file : (Iterable<Path>) Files.list(folder)::iterator) {
            if (!file.toFile().delete()) {
                file.toFile().deleteOnExit();
            }
        }
        folder.toFile().delete();
    }
}
