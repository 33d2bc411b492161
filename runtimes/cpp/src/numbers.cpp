#include "numbers.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::u32string_view group_marks = U".,'’\u00a0\u2009\u202f";  // between groups of three digits

using Text = std::u32string;
using View = std::u32string_view;

// The runs of digits of a number, and the marks between them.
struct Runs {
    std::vector<Text> runs;
    Text marks;
};

Runs runs_of(View number) {
    Runs found{{Text()}, {}};
    for (const char32_t letter : number) {
        if (is_ascii_digit(letter)) {
            found.runs.back() += letter;
        } else {
            found.marks += letter;
            found.runs.emplace_back();
        }
    }
    return found;
}

int small_value(const Text &run) {  // of at most two digits
    int value = 0;
    for (const char32_t digit : run) value = 10 * value + static_cast<int>(digit - U'0');
    return value;
}

Text digits_of(int value) {
    const std::string text = std::to_string(value);
    return {text.begin(), text.end()};
}

bool is_between(const Text &run, int least, int most) { return run.size() <= 2 && small_value(run) >= least && small_value(run) <= most; }

bool is_time(const Runs &number) {
    return number.runs.size() == 2 && (number.marks == U":" || number.marks == U".") && is_between(number.runs[0], 0, 23) &&
           number.runs[1].size() == 2 && is_between(number.runs[1], 0, 59);
}

bool is_letter_or_number(char32_t letter) { return is_letter(letter) || is_number(letter); }

// Whether a date without a year goes on: its full stop, blanks, and a letter, digit or _.
bool goes_on(const Text &text, std::size_t at) {
    if (at >= text.size() || text[at] != U'.') return false;
    const std::size_t next = text.find_first_not_of(U' ', at + 1);
    return next != Text::npos && next > at + 1 && (is_letter_or_number(text[next]) || text[next] == U'_');
}

bool is_in_parts(const Runs &number, const Text &text, std::size_t end) {
    const auto all = [&](char32_t mark) { return !number.marks.empty() && number.marks.find_first_not_of(mark) == Text::npos; };
    const std::size_t count = number.runs.size();
    if (all(U'.') && (count == 2 || count == 3) && is_between(number.runs[0], 1, 31) && is_between(number.runs[1], 1, 12))
        return count == 3 ? number.runs[2].size() == 2 || number.runs[2].size() == 4 : goes_on(text, end);
    return all(U'/') || (all(U':') && !is_time(number));
}

// The letter of the half of the day at `at`, or 0.
char32_t half_at(const Text &text, std::size_t at) {
    const auto ends_at = [&](std::size_t start, View form) {
        const std::size_t end = start + form.size();
        return text.compare(start, form.size(), form) == 0 && (end == text.size() || !is_letter_or_number(text[end]));
    };
    if (at >= text.size()) return 0;
    if (ends_at(at, U"am")) return U'a';
    const std::size_t start = at + (text[at] == U' ' || text[at] == U'\u00a0');
    if (start >= text.size()) return 0;
    for (const View form : {U"a.m", U"A.M", U"AM"})
        if (ends_at(start, form)) return U'a';
    for (const View form : {U"p.m", U"P.M", U"pm", U"PM"})
        if (ends_at(start, form)) return U'p';
    return 0;
}

// A number with each mark of decimals and of groups; one of two digits loses its leading zero.
void add_with_marks(std::vector<Text> &found, const Text &whole, const Text *decimals) {
    for (const View marks : {U".,", U",."}) {
        const Text fraction = decimals ? Text(1, marks[0]) + *decimals : Text();
        found.push_back(whole + fraction);
        if (whole.size() > 3 && whole[0] != U'0') {
            Text grouped;
            for (std::size_t i = 0; i < whole.size(); i++) {
                if (i && (whole.size() - i) % 3 == 0) grouped += marks[1];
                grouped += whole[i];
            }
            found.push_back(grouped + fraction);
        }
        if (whole.size() == 2 && whole[0] == U'0') found.push_back(whole.substr(1) + fraction);
    }
}

// A time on a clock of 24 hours, and of 12 with a half of the day.
void add_clock(std::vector<Text> &found, int hour, const Text &minutes, char32_t half) {
    if (half) hour = hour % 12 + (half == U'p' ? 12 : 0);
    std::vector<Text> ends = {U":" + minutes};
    if (minutes == U"00") ends.insert(ends.begin(), Text());
    for (const Text &end : ends) {
        found.push_back(digits_of(hour) + end);
        found.push_back(digits_of(hour % 12 ? hour % 12 : 12) + end + (hour >= 12 ? U" p.m" : U" a.m"));
        if (!end.empty() && hour < 10) found.push_back(U"0" + digits_of(hour) + end);
    }
}

// Adds the spellings of a number in groups of three, with or without decimals. False: it is none.
bool add_grouped(std::vector<Text> &found, const Runs &number) {
    const auto &[runs, marks] = number;
    if (marks.empty() || group_marks.find(marks[0]) == View::npos || runs[0].size() > 3 || runs[0][0] == U'0') return false;
    std::size_t groups = 0;
    Text whole = runs[0];
    while (groups < marks.size() && marks[groups] == marks[0] && runs[groups + 1].size() == 3) whole += runs[++groups];
    const std::size_t left = marks.size() - groups;
    if (groups == 0 || left > 1 || (left == 1 && marks.back() != U'.' && marks.back() != U',')) return false;
    add_with_marks(found, whole, left ? &runs.back() : nullptr);
    return true;
}

const std::map<Text, int> &values() {  // of words of English, then of German
    static const std::map<Text, int> *const all = [] {
        const std::array<View, 13> words = {
            U"zero null", U"one first eins january januar", U"two second zwei february februar", U"three third drei march märz",
            U"four fourth vier april", U"five fifth fünf may mai", U"six sixth sechs june juni", U"seven seventh sieben july juli",
            U"eight eighth acht august", U"nine ninth neun september", U"ten tenth zehn october oktober", U"eleven eleventh elf november",
            U"twelve twelfth zwölf december dezember",
        };
        auto *made = new std::map<Text, int>;
        for (std::size_t value = 0; value < words.size(); value++)
            for (std::size_t at = 0, end; at <= words[value].size(); at = end + 1) {
                end = std::min(words[value].find(U' ', at), words[value].size());
                made->emplace(words[value].substr(at, end - at), static_cast<int>(value));
            }
        return made;
    }();
    return *all;
}

}  // namespace

bool is_ascii_digit(char32_t letter) { return letter >= U'0' && letter <= U'9'; }

bool is_number_mark(char32_t letter) { return letter == U':' || letter == U'/' || group_marks.find(letter) != View::npos; }

std::u32string characters(std::string_view text) {
    Text found;
    for (std::size_t at = 0; at < text.size();) {
        const Decoded next = decode_utf8(text, at);
        found += next.code;
        at += next.size;
    }
    return found;
}

int value_of(const Text &word) {
    const auto found = values().find(word);
    return found == values().end() ? -1 : found->second;
}

std::u32string small(Text word) {
    for (char32_t &letter : word) {
        const auto in = [&](char32_t first, char32_t last) { return letter >= first && letter <= last; };
        if (in(U'A', U'Z') || (in(0xC0, 0xDE) && letter != 0xD7) || (in(0x391, 0x3A9) && letter != 0x3A2) || in(0x410, 0x42F)) letter += 32;
        else if (in(0x400, 0x40F)) letter += 80;
        else if (letter == 0x178) letter = 0xFF;
        else if (in(0x139, 0x148) || in(0x179, 0x17E)) letter += letter % 2;
        else if ((in(0x100, 0x137) || in(0x14A, 0x177)) && letter != 0x130) letter += letter % 2 == 0;
    }
    return word;
}

std::vector<TextNumber> numbers(const Text &text) {
    std::vector<TextNumber> found;
    for (std::size_t at = 0; at < text.size(); at++) {
        if (!is_ascii_digit(text[at])) continue;
        std::size_t end = at + 1;
        while (end < text.size() && (is_ascii_digit(text[end]) || (is_number_mark(text[end]) && end + 1 < text.size() && is_ascii_digit(text[end + 1])))) end++;
        const Runs number = runs_of(View(text).substr(at, end - at));
        if (is_in_parts(number, text, end))
            for (const Text &run : number.runs) found.push_back({run, 0, false});
        else
            found.push_back({text.substr(at, end - at), half_at(text, end), true});
        at = end - 1;
    }
    return found;
}

std::vector<Text> spellings(const TextNumber &number) {
    std::vector<Text> found = {number.text};
    const Runs parts = runs_of(number.text);
    if (parts.runs.size() == 1) add_with_marks(found, number.text, nullptr);
    else if (!add_grouped(found, parts) && (parts.marks == U"." || parts.marks == U",")) add_with_marks(found, parts.runs[0], &parts.runs[1]);
    if (is_time(parts)) add_clock(found, small_value(parts.runs[0]), parts.runs[1], number.half);
    else if (number.whole && parts.runs.size() == 1 && is_between(number.text, 0, 23)) add_clock(found, small_value(number.text), U"00", number.half);
    return found;
}

std::size_t unspelled(const std::vector<const TextNumber *> &left, const Text &text) {
    std::map<Text, int> words;  // of each value
    Text word;
    for (const char32_t letter : small(text) + U" ") {
        if (is_letter(letter)) {
            word += letter;
            continue;
        }
        if (const int value = value_of(word); value >= 0) words[digits_of(value)]++;
        word.clear();
    }
    return static_cast<std::size_t>(std::count_if(left.begin(), left.end(), [&](const TextNumber *number) {
        const std::size_t first = std::min(number->text.find_first_not_of(U'0'), number->text.size() - 1);
        const auto there = words.find(number->text.substr(first));
        return there == words.end() || there->second-- <= 0;
    }));
}

}  // namespace t2r
