package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Finds libt2r, and converts what its functions take and return. */
@SuppressWarnings("restricted")
final class Native {
    private Native() {}

    private static final Linker LINKER = Linker.nativeLinker();
    private static final SymbolLookup LIBRARY = library();

    private static SymbolLookup library() {
        String given = System.getProperty("t2r.library"), name = given == null ? System.mapLibraryName("t2r") : given;
        SymbolLookup own = given == null ? Natives.open() : null;
        if (own != null) {
            return fitting(own, name + " in the jar");
        }
        try {
            return fitting(SymbolLookup.libraryLookup(name, Arena.global()), name);
        } catch (IllegalArgumentException error) {
            throw new UnsatisfiedLinkError("expected " + name + " where the system looks for libraries, or in the jar for "
                    + Natives.PLATFORM + "; received neither, platforms in the jar: " + Natives.platforms()
                    + "; set LD_LIBRARY_PATH, or -Dt2r.library=FILE");
        }
    }

    /** Checks the release: a library found by its short name may be of any, as no soname is compared. */
    private static SymbolLookup fitting(SymbolLookup library, String name) {
        int minor;
        try {
            MethodHandle version = LINKER.downcallHandle(library.find("t2r_version").orElseThrow(), FunctionDescriptor.of(JAVA_INT));
            minor = (int) version.invokeExact() / 1000;
        } catch (Throwable error) {
            throw new AssertionError(error); // before t2r_version there was no release
        }
        if (minor != Declarations.MINOR) {
            throw new UnsatisfiedLinkError("expected " + name + " of the version " + release(Declarations.MINOR) + "; received "
                    + release(minor) + "; update t2r.jar and libt2r together");
        }
        return library;
    }

    private static String release(int minor) {
        return minor / 1000 + "." + minor % 1000;
    }

    /** A function of libt2r. */
    static MethodHandle function(String name, ValueLayout returns, ValueLayout... takes) {
        return LINKER.downcallHandle(LIBRARY.find(name).orElseThrow(), FunctionDescriptor.of(returns, takes));
    }

    /** A C function that calls a Java method. */
    static MemorySegment callback(MethodHandle target, FunctionDescriptor type, Arena arena) {
        return LINKER.upcallStub(target, type, arena);
    }

    static long at(StructLayout layout, String name) {
        return layout.byteOffset(MemoryLayout.PathElement.groupElement(name));
    }

    /** Throws if the kind is not 0. The message is thread-local, so it is read at once. */
    static void check(int kind) throws Throwable {
        if (kind == 0) {
            return;
        }
        Kind[] kinds = Kind.values();
        String line = text((MemorySegment) Declarations.ERROR.invokeExact());
        throw new T2rException(kind <= kinds.length ? kinds[kind - 1] : Kind.RUNTIME, line);
    }

    static MemorySegment numbers(Arena arena, long[] tokens) {
        return tokens.length == 0 ? arena.allocate(JAVA_LONG) : arena.allocateFrom(JAVA_LONG, tokens);
    }

    static MemorySegment bytes(Arena arena, byte[] data) {
        MemorySegment made = arena.allocate(Math.max(data.length, 1), Long.BYTES);
        MemorySegment.copy(data, 0, made, ValueLayout.JAVA_BYTE, 0, data.length);
        return made;
    }

    /** Zero-terminated texts. */
    static MemorySegment words(Arena arena, List<String> texts) {
        MemorySegment made = arena.allocate(ADDRESS, Math.max(texts.size(), 1));
        for (int index = 0; index < texts.size(); index++) {
            if (texts.get(index).indexOf('\0') >= 0) {
                throw new T2rException(
                        Kind.ARGUMENT, "expected a text; received one with a zero byte in it; leave that out");
            }
            made.setAtIndex(ADDRESS, index, arena.allocateFrom(texts.get(index)));
        }
        return made;
    }

    /** A copy of the numbers at a pointer. */
    static long[] numbers(MemorySegment pointer, long count) {
        return pointer.reinterpret(count * Long.BYTES).toArray(JAVA_LONG);
    }

    static float[] floats(MemorySegment pointer, long count) {
        return pointer.reinterpret(count * Float.BYTES).toArray(ValueLayout.JAVA_FLOAT);
    }

    static byte[] bytes(MemorySegment pointer, long count) {
        return pointer.reinterpret(count).toArray(ValueLayout.JAVA_BYTE);
    }

    static String text(MemorySegment pointer) {
        return pointer.reinterpret(Long.MAX_VALUE).getString(0);
    }

    static String text(MemorySegment pointer, long size) {
        return new String(bytes(pointer, size), StandardCharsets.UTF_8);
    }
}
