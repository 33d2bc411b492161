#include <algorithm>

#include "tokenizer.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::string_view unfinished = "\xEF\xBF\xBD";  // for bytes of an invalid or incomplete character
constexpr std::size_t most_unfinished = 16, longest_context = 32;

bool starts_with(std::string_view text, std::string_view beginning) { return text.substr(0, beginning.size()) == beginning; }
bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Their number at the end of the text.
std::size_t count_unfinished(std::string_view text) {
    std::size_t count = 0;
    while (ends_with(text, unfinished)) {
        text.remove_suffix(unfinished.size());
        count++;
    }
    return count;
}

}  // namespace

TextStream::TextStream(std::shared_ptr<Tokenizer> shared, const Ids &prompt) : tokenizer(std::move(shared)) {
    Ids tail(prompt.end() - static_cast<std::ptrdiff_t>(std::min(prompt.size(), longest_context)), prompt.end());
    // start at a character boundary: stray bytes would corrupt the characters after them
    for (std::size_t skipped = 0; skipped < 4; skipped++) {
        const Ids cut(tail.begin() + static_cast<std::ptrdiff_t>(std::min(skipped, tail.size())), tail.end());
        if (starts_with(tokenizer->decode(cut), unfinished)) continue;
        tail = cut;
        break;
    }
    start_from(std::move(tail));
}

void TextStream::start_from(Ids tokens) {
    context = std::move(tokens);
    before = tokenizer->decode(context);
    pending.clear();
    given = 0;
}

// Bounds the pending tokens, which are many if tokens have no text, or all of them end within a character. held: their
// text that was not returned.
void TextStream::shorten(std::string_view held) {
    const std::string text = tokenizer->decode(pending);
    // otherwise the last token has no text, and none of the others has any that could be the context
    if (text.empty() || !ends_with(text, held)) return pending.pop_back();
    start_from(pending);
    before.resize(text.size() - held.size());
}

std::string TextStream::pending_text() {
    Ids both = context;
    both.insert(both.end(), pending.begin(), pending.end());
    const std::string text = tokenizer->decode(both);
    // together with the context's last bytes, the new bytes may be invalid; then decode them alone
    return starts_with(text, before) ? text.substr(before.size()) : tokenizer->decode(pending);
}

std::string TextStream::feed(std::int64_t token) {
    pending.push_back(token);
    const std::string text = pending_text();
    const std::size_t waiting = count_unfinished(text);
    const std::size_t whole = text.size() - (waiting > most_unfinished ? 0 : waiting * unfinished.size());
    std::string fresh = given < whole ? text.substr(given, whole - given) : "";
    given = std::max(given, whole);
    if (!text.empty() && whole == text.size()) start_from(pending);  // keep the context after tokens without text
    else if (pending.size() > longest_context) shorten(std::string_view(text).substr(std::min(given, text.size())));
    return fresh;
}

std::string TextStream::end() {
    const std::string text = pending_text();
    std::string fresh = given < text.size() ? text.substr(given) : "";
    start_from(pending.empty() ? context : pending);
    return fresh;
}

}  // namespace t2r
