package t2r;

import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.invoke.MethodHandle;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.ObjDoubleConsumer;
import java.util.function.ObjIntConsumer;
import java.util.function.ObjLongConsumer;
import java.util.function.ToDoubleFunction;
import java.util.function.ToIntFunction;
import java.util.function.ToLongFunction;

/** A struct of options, field by field: the library's defaults become an object's, and an object a struct for a call. */
final class Fields<T> {
    private final StructLayout layout;
    private final MethodHandle defaults;
    private final List<BiConsumer<MemorySegment, T>> reads = new ArrayList<>();
    private final List<BiConsumer<MemorySegment, T>> writes = new ArrayList<>();

    Fields(StructLayout layout, MethodHandle defaults) {
        this.layout = layout;
        this.defaults = defaults;
    }

    /** A field of 64 bits. */
    Fields<T> whole(String name, ToLongFunction<T> get, ObjLongConsumer<T> set) {
        long at = Native.at(layout, name);
        reads.add((struct, options) -> set.accept(options, struct.get(JAVA_LONG, at)));
        writes.add((struct, options) -> struct.set(JAVA_LONG, at, get.applyAsLong(options)));
        return this;
    }

    /** A field of 32 bits. */
    Fields<T> small(String name, ToIntFunction<T> get, ObjIntConsumer<T> set) {
        long at = Native.at(layout, name);
        reads.add((struct, options) -> set.accept(options, struct.get(JAVA_INT, at)));
        writes.add((struct, options) -> struct.set(JAVA_INT, at, get.applyAsInt(options)));
        return this;
    }

    Fields<T> real(String name, ToDoubleFunction<T> get, ObjDoubleConsumer<T> set) {
        long at = Native.at(layout, name);
        reads.add((struct, options) -> set.accept(options, struct.get(JAVA_DOUBLE, at)));
        writes.add((struct, options) -> struct.set(JAVA_DOUBLE, at, get.applyAsDouble(options)));
        return this;
    }

    /** Gives an object the library's defaults. */
    void reset(T options) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment made = Native.defaults(defaults, arena);
            reads.forEach(read -> read.accept(made, options));
        }
    }

    /** A struct with what an object has, and the library's defaults in all other fields. */
    MemorySegment given(T options, Arena arena) {
        MemorySegment made = Native.defaults(defaults, arena);
        writes.forEach(write -> write.accept(made, options));
        return made;
    }
}
