package t2r;

/** Every failure: a kind, and one line that says what was expected, what was received, what to do. */
public final class T2rException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final Kind kind;

    T2rException(Kind kind, String line) {
        super(kind + ": " + line);
        this.kind = kind;
    }

    public Kind kind() {
        return kind;
    }
}
