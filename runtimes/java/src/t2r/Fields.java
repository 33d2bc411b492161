package t2r;

import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Function;

/** Writes an object's options over a struct's defaults, field by field. A field that is null keeps its default. */
final class Fields<T> {
    /** Fills a struct with defaults. */
    interface Fill {
        int call(MemorySegment struct, long size) throws Throwable;
    }

    private final StructLayout layout;
    private final List<BiConsumer<MemorySegment, T>> writes = new ArrayList<>();

    Fields(StructLayout layout) {
        this.layout = layout;
    }

    /** A field of 64 bits. */
    Fields<T> whole(String name, Function<T, Long> get) {
        return field(name, get, (struct, at, value) -> struct.set(JAVA_LONG, at, value));
    }

    /** A field of 32 bits. */
    Fields<T> small(String name, Function<T, Integer> get) {
        return field(name, get, (struct, at, value) -> struct.set(JAVA_INT, at, value));
    }

    Fields<T> real(String name, Function<T, Double> get) {
        return field(name, get, (struct, at, value) -> struct.set(JAVA_DOUBLE, at, value));
    }

    private interface Set<V> {
        void call(MemorySegment struct, long at, V value);
    }

    private <V> Fields<T> field(String name, Function<T, V> get, Set<V> set) {
        long at = Native.at(layout, name);
        writes.add((struct, options) -> {
            V value = get.apply(options);
            if (value != null) {
                set.call(struct, at, value);
            }
        });
        return this;
    }

    /** A struct with an object's options, and defaults in all other fields. */
    MemorySegment given(T options, Arena arena, Fill defaults) throws Throwable {
        MemorySegment made = arena.allocate(layout);
        Native.check(defaults.call(made, layout.byteSize()));
        writes.forEach(write -> write.accept(made, options));
        return made;
    }
}
