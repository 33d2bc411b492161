package conformance;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** Parses the JSON of golden files to Map, List, String, Long, Double, Boolean and null. It trusts them. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object parse(String text) {
        Json reader = new Json(text);
        Object value = reader.value();
        if (reader.peek() != 0) {
            throw reader.wrong("the end");
        }
        return value;
    }

    private Wrong wrong(String wanted) {
        return new Wrong("expected " + wanted + " at character " + at + " of the golden file");
    }

    /** The next character that is not a space; 0 at the end. */
    private char peek() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : 0;
    }

    private boolean take(String word) {
        peek();
        boolean there = text.startsWith(word, at);
        at += there ? word.length() : 0;
        return there;
    }

    private void need(String word) {
        if (!take(word)) {
            throw wrong(word);
        }
    }

    private Object value() {
        if (take("null")) {
            return null;
        }
        if (take("true")) {
            return true;
        }
        if (take("false")) {
            return false;
        }
        return switch (peek()) {
            case '"' -> string();
            case '[' -> list();
            case '{' -> map();
            default -> number();
        };
    }

    private List<Object> list() {
        List<Object> found = new ArrayList<>();
        several("[", "]", () -> found.add(value()));
        return found;
    }

    private Map<String, Object> map() {
        Map<String, Object> found = new LinkedHashMap<>();
        several("{", "}", () -> {
            peek();
            String key = string();
            need(":");
            return found.put(key, value());
        });
        return found;
    }

    private void several(String open, String close, Supplier<Object> one) {
        need(open);
        for (boolean first = true; !take(close); first = false) {
            if (!first) {
                need(",");
            }
            one.get();
        }
    }

    private Object number() {
        int begin = at;
        while (at < text.length() && "0123456789+-.eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String word = text.substring(begin, at);
        try {
            return word.matches("-?\\d+") ? (Object) Long.valueOf(word) : Double.valueOf(word);
        } catch (NumberFormatException error) {
            throw wrong("a number before");
        }
    }

    private String string() {
        need("\"");
        StringBuilder found = new StringBuilder();
        for (; ; at++) {
            if (at >= text.length()) {
                throw wrong("the end of a text");
            }
            char letter = text.charAt(at);
            if (letter == '"') {
                at++;
                return found.toString();
            }
            found.append(letter == '\\' ? escaped() : letter);
        }
    }

    /** The character, or half of one, of an escape sequence. */
    private char escaped() {
        char letter = ++at < text.length() ? text.charAt(at) : 0;
        if (letter == 'u' && at + 4 < text.length()) {
            at += 4;
            return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
        }
        int known = "\"\\/bfnrt".indexOf(letter);
        if (known < 0) {
            throw wrong("an escape");
        }
        return "\"\\/\b\f\n\r\t".charAt(known);
    }
}
