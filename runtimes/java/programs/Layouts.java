import java.lang.foreign.MemoryLayout;
import java.lang.foreign.StructLayout;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.reflect.Field;

/** Layouts: the declarations of t2r.h as the virtual machine sees them, a line each. */
public class Layouts {
    public static void main(String[] arguments) throws ReflectiveOperationException {
        for (Field field : Class.forName("t2r.Declarations").getDeclaredFields()) {
            field.setAccessible(true);
            Object value = field.get(null);
            if (value instanceof MethodHandle handle) {
                System.out.println(field.getName() + " " + handle.type());
            } else if (value instanceof StructLayout layout) {
                System.out.println(field.getName() + " " + layout.byteSize());
                layout.memberLayouts().stream().filter(ValueLayout.class::isInstance).forEach(member -> {
                    String name = member.name().orElseThrow();
                    long at = layout.byteOffset(MemoryLayout.PathElement.groupElement(name));
                    System.out.println(field.getName() + "." + name + " " + at + " " + ((ValueLayout) member).carrier());
                });
            }
        }
    }
}
