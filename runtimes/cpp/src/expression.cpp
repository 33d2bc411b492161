#include "expression.hpp"

#include <map>

#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::size_t max_bytes = 4096, max_branches = 32, max_steps = 16, max_count = 64, max_ways = 64;

class Parser {
public:
    Parser(std::string_view text, const char *component) : text(text), component(component) {}

    std::vector<Branch> branches() {
        if (text.size() > max_bytes) refuse("more than 4,096 bytes");
        std::vector<Branch> found(1);
        while (at < text.size()) {
            if (take("|")) found.emplace_back();
            else found.back().push_back(step());
            if (found.size() > max_branches || found.back().size() > max_steps) refuse("too many branches or steps");
        }
        return found;
    }

    [[noreturn]] void refuse(const std::string &reason) const {
        refuse_part(component, "with " + reason + " in the regular expression " + std::string(text));
    }

private:
    bool is(std::string_view next) const { return text.substr(at, next.size()) == next; }
    bool take(std::string_view next) {
        if (!is(next)) return false;
        at += next.size();
        return true;
    }
    [[noreturn]] void refuse_here() const { refuse(at < text.size() ? "\"" + std::string(text.substr(at, 4)) + "\"" : "no end"); }
    char32_t character() {
        if (at >= text.size()) refuse_here();
        const Decoded decoded = decode_utf8(text, at);
        at += decoded.size;
        return decoded.code;
    }

    Step step() {
        const std::size_t begin = at;
        for (const auto &[opening, kind] : {std::pair{"(?=", Step::ahead}, {"(?!", Step::not_ahead}})
            if (take(opening)) {
                Step made = plain();
                if (!take(")")) refuse_here();
                made.kind = kind;
                return made;
            }
        if (take("^")) return {Step::line_begin};
        if (take("$")) return {Step::line_end};
        const bool any_case = is("(?i:");
        if (!take("(?:") && !take("(?i:")) return counted(plain());
        Step made{Step::words};
        made.alternatives = words(any_case);
        if (take("?")) made.least = 0;
        made.source = text.substr(begin, at - begin);
        if (at < text.size() && std::string_view("?*+{").find(text[at]) != std::string_view::npos) refuse_here();
        return made;
    }

    // A set without a count.
    Step plain() {
        const std::size_t begin = at;
        Step made{Step::set};
        CodeRanges ranges = one_of();
        made.source = text.substr(begin, at - begin);
        made.characters = shared(made.source, std::move(ranges));
        return made;
    }

    Step counted(Step made) {
        if (take("?")) made.least = 0;
        else if (take("*")) made.least = 0, made.most = Step::unbounded;
        else if (take("+")) made.most = Step::unbounded;
        else if (take("{")) {
            made.least = made.most = number();
            if (take(",")) made.most = is("}") ? Step::unbounded : number();
            if (!take("}") || made.most < std::max<std::size_t>(made.least, 1)) refuse_here();
            if (is("+")) refuse_here();
            return at_end(std::move(made));
        }
        else return made;
        made.possessive = take("+");
        return at_end(std::move(made));
    }

    Step at_end(Step made) const {
        if (at < text.size() && std::string_view("?*+{").find(text[at]) != std::string_view::npos) refuse_here();
        return made;
    }

    std::size_t number() {
        std::size_t value = 0, begin = at;
        for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && at < begin + 3; at++) value = value * 10 + static_cast<std::size_t>(text[at] - '0');
        if (at == begin || value > max_count) refuse_here();
        return value;
    }

    // A character, an escape or a list in brackets.
    CodeRanges one_of() {
        if (take("[")) return list(true);
        if (at < text.size() && std::string_view("|()]{}^$.*+?").find(text[at]) != std::string_view::npos) refuse_here();
        return listed();
    }

    CodeRanges escape() {
        take("\\");
        const std::size_t begin = at;
        const char32_t code = character();
        switch (code) {
        case 'r': return {{'\r', '\r'}};
        case 'n': return {{'\n', '\n'}};
        case 't': return {{'\t', '\t'}};
        case 's': return spaces();
        case 'S': return complement(spaces());
        case 'd': return category_named("Nd");
        case 'D': return complement(category_named("Nd"));
        case 'p':
        case 'P': return category(code == 'P');
        default: break;
        }
        const bool letter = code == '_' || (code >= '0' && code <= '9') || ((code | 32) >= 'a' && (code | 32) <= 'z');
        if (code > ' ' && code < 127 && !letter) return {{code, code}};
        at = begin;
        refuse("\"\\" + std::string(text.substr(at, 3)) + "\"");
    }

    CodeRanges category(bool negated) {
        const std::size_t end = text.find('}', at);
        if (!take("{") || end == text.npos) refuse_here();
        if (take("^")) negated = !negated;
        CodeRanges ranges = category_named(text.substr(at, end - at));
        if (ranges.empty()) refuse("\"\\p{" + std::string(text.substr(at, end - at)) + "}\"");
        at = end + 1;
        return negated ? complement(std::move(ranges)) : ranges;
    }

    // What follows [; a list in it is not negated and has none in it.
    CodeRanges list(bool outer) {
        const bool negated = outer && take("^");
        CodeRanges found;
        const std::size_t begin = at;
        while (!take("]")) {
            if (is("&&") || is("[:") || is("--") || (!outer && (is("[") || (at == begin && is("^"))))) refuse_here();
            if (is("-") && at != begin && !is("-]")) refuse_here();
            const bool one = !is("[") && !is_class();
            CodeRanges items = take("[") ? list(false) : listed();
            if (one && is("-") && !is("-]")) {
                take("-");
                if (is("[") || is("-") || is_class()) refuse_here();
                items[0].last = listed()[0].first;
                if (items[0].last < items[0].first) refuse_here();
            }
            found.insert(found.end(), items.begin(), items.end());
        }
        if (found.empty()) refuse("an empty list");
        return negated ? complement(std::move(found)) : found;
    }

    // Whether an escape of several characters follows.
    bool is_class() const { return is("\\") && at + 1 < text.size() && std::string_view("sSdDpP").find(text[at + 1]) != std::string_view::npos; }

    CodeRanges listed() {
        if (is("\\")) return escape();
        const char32_t code = character();
        return {{code, code}};
    }

    std::vector<std::vector<SharedSet>> words(bool any_case) {
        std::vector<std::vector<SharedSet>> found(1);
        CodeRanges before;
        while (!take(")")) {
            if (take("|")) {
                if (found.back().empty()) refuse_here();
                found.emplace_back();
                before.clear();
            } else {
                const std::size_t begin = at;
                CodeRanges ranges = one_of();
                std::string source(text.substr(begin, at - begin));
                if (any_case) {
                    require_foldable(before, ranges);
                    before = ranges;
                    ranges = folded(ranges);
                    source += "(?i)";
                }
                found.back().push_back(shared(source, std::move(ranges)));
            }
            if (found.size() > max_branches || found.back().size() > max_steps) refuse("too many words");
        }
        if (found.back().empty()) refuse("an empty word");
        return found;
    }

    // In ASCII, no pair of letters may be a ligature of Unicode's: regardless of case, it would match that too.
    void require_foldable(const CodeRanges &before, const CodeRanges &ranges) const {
        for (const CodeRange &second : ranges) {
            if (second.first != second.last || second.last > 127) refuse("\"(?i:\" of other characters than ASCII's");
            for (const CodeRange &first : before)
                for (const char *pair : {"ss", "st", "ff", "fi", "fl"})
                    if ((first.first | 32) == static_cast<char32_t>(pair[0]) && (second.first | 32) == static_cast<char32_t>(pair[1]))
                        refuse("\"(?i:\" of a ligature");
        }
    }

    static CodeRanges folded(const CodeRanges &ranges) {
        CodeRanges found = ranges;
        for (const CodeRange &range : ranges) {
            const char32_t lower = range.first | 32;
            if (lower < 'a' || lower > 'z' || range.first < 'A') continue;
            found.push_back({lower, lower});
            found.push_back({lower - 32, lower - 32});
            if (lower == 's') found.push_back({0x17F, 0x17F});
            if (lower == 'k') found.push_back({0x212A, 0x212A});
        }
        return found;
    }

    SharedSet shared(const std::string &source, CodeRanges ranges) {
        SharedSet &set = sets[source];
        if (!set) set = std::make_shared<CharacterSet>(std::move(ranges));
        return set;
    }

    const std::string_view text;
    const char *const component;
    std::size_t at = 0;
    std::map<std::string, SharedSet> sets;
};

std::string negated(const std::string &source) {
    if (source.substr(0, 2) == "[^") return "[" + source.substr(2);
    if (source[0] == '[') return "[^" + source.substr(1);
    if (source[0] == '\\' && std::string_view("sSdDpP").find(source[1]) != std::string_view::npos)
        return std::string("\\") + static_cast<char>(source[1] ^ 32) + source.substr(2);
    return "[^" + source + "]";
}

bool is_run(const Step &step) { return step.kind == Step::set && step.most == Step::unbounded; }

// A step of a branch that begins where a run ends and may send the run back.
bool fails_after(const Branch &branch, std::size_t run) {
    return std::any_of(branch.begin() + static_cast<std::ptrdiff_t>(run) + 1, branch.end(), [](const Step &step) { return step.can_fail(); });
}

// Whether the run at `place` is consumed but for one character: what follows it is a place before no other character.
bool closes_itself(const Branch &branch, std::size_t place) {
    return branch.size() == place + 2 && branch[place + 1].kind == Step::not_ahead && !branch[place].possessive &&
           branch[place + 1].source == negated(branch[place].source);
}

// Whether all others are runs of the same set from the beginning of a line, and this one ends at the end of a line.
bool is_edge(const std::vector<Branch> &branches, std::size_t place) {
    const Branch &last = branches.back();
    if (place != 0 || last.size() != 2 || last[1].kind != Step::line_end) return false;
    return std::all_of(branches.begin(), branches.end() - 1, [&](const Branch &branch) {
        return branch.size() == 2 && branch[0].kind == Step::line_begin && is_run(branch[1]) && branch[1].source == last[0].source;
    });
}

// The run that a branch may read and then fail, or the number of its steps.
std::size_t scanned(const Branch &branch, const Parser &parser) {
    std::size_t found = branch.size(), ways = 1, consumed = 0;
    for (std::size_t i = 0; i < branch.size(); i++) {
        const Step &step = branch[i];
        if (is_run(step) && fails_after(branch, i)) {
            if (found < branch.size()) parser.refuse("two runs that may be read in vain");
            found = i;
        }
        if (step.kind == Step::words) ways *= step.alternatives.size() + (step.least == 0);
        if (step.kind == Step::set && !is_run(step)) ways *= step.most - step.least + 1;
        consumed += (step.kind == Step::set || step.kind == Step::words) && step.least > 0;
        if (ways > max_ways) parser.refuse("more than 64 ways through a branch");
    }
    if (consumed == 0) parser.refuse("a branch that matches no character");
    return found;
}

void require_linear(std::vector<Branch> &branches, const Parser &parser) {
    for (std::size_t i = 0; i < branches.size(); i++) {
        const std::size_t place = scanned(branches[i], parser);
        if (place == branches[i].size() || closes_itself(branches[i], place)) continue;
        if (i + 1 == branches.size()) {
            if (!is_edge(branches, place)) parser.refuse("a run that may be read in vain");
            Step first = branches[i][0];
            first.kind = Step::not_behind;
            first.least = first.most = 1;
            branches[i].insert(branches[i].begin(), first);
            return;
        }
        const Branch &next = branches[i + 1];
        bool paid = next.size() > place && is_run(next[place]) && next[place].source == branches[i][place].source;
        for (std::size_t before = 0; paid && before < place; before++) paid = branches[i][before].same(next[before]);
        if (!paid) parser.refuse("a run that may be read in vain");
    }
}

}  // namespace

std::vector<Branch> parse_expression(std::string_view text, const char *component) {
    Parser parser(text, component);
    std::vector<Branch> branches = parser.branches();
    require_linear(branches, parser);
    for (Branch &branch : branches) {
        bool fails = false;
        for (std::size_t i = branch.size(); i-- > 0; fails = fails || branch[i].can_fail()) branch[i].certain = !fails;
    }
    return branches;
}

}  // namespace t2r
