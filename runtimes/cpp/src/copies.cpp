#include "copies.hpp"

#include <algorithm>
#include <limits>

#include "signature.hpp"
#include "unicode.hpp"

namespace t2r {

namespace {

constexpr std::size_t most_items = 30, most_letters = 32, most_states = 16;
constexpr double number_gain = 2, number_loss = 8, certain_gain = 6, certain_loss = 2, name_gain = 2;

using Text = std::u32string;

std::uint32_t first(std::uint32_t mask) { return mask & (~mask + 1); }

std::uint32_t mask_of(const std::map<Text, std::uint32_t> &masks, const Text &text, std::uint32_t placed) {
    const auto found = masks.find(text);
    return found == masks.end() ? 0 : found->second & ~placed;
}

char place(char32_t letter) { return is_letter(letter) ? 'w' : 'g'; }

// The ways to write a half of the day at the end of a spelling.
std::vector<Text> with_halves(const Text &spelling) {
    if (spelling.size() < 4) return {spelling};
    const Text half = spelling.substr(spelling.size() - 4);
    std::vector<Text> forms;
    if (half == U" p.m") forms = {U" p.m", U" pm", U" PM", U"p.m", U"pm"};
    else if (half == U" a.m") forms = {U" a.m", U" AM", U"a.m", U"am"};
    else return {spelling};
    for (Text &form : forms) form.insert(0, spelling, 0, spelling.size() - 4);
    return forms;
}

}  // namespace

Copying::Copying(const Signature &signature) {
    Tokenizer target(*signature.tokenizer, signature.bos_token);
    source = std::make_shared<Tokenizer>(signature.source->tokenizer ? *signature.source->tokenizer : *signature.tokenizer, -1);
    Ids ids = target.encode("a", false);
    const std::size_t cut = target.decode(ids).size();
    ids.push_back(0);
    for (std::int64_t token = 0; token < signature.vocab_size; token++) {
        ids.back() = token;
        const std::string text = target.decode(ids);
        texts.push_back(characters(text.size() < cut ? std::string() : text.substr(cut)));
        has_digits.push_back(std::any_of(texts.back().begin(), texts.back().end(), is_ascii_digit));
        tokens[texts.back()].push_back(token);
    }
}

std::unique_ptr<Copies> Copying::of(const Ids &ids) const {
    const Text text = characters(source->decode(ids));
    std::vector<TextNumber> given = numbers(text);
    if (given.size() > most_items) return nullptr;
    for (const TextNumber &number : given)
        if (number.text.size() > most_letters) return nullptr;
    std::vector<Name> named = names(text, [&](const Text &word) { return tokens.count(U" " + word) > 0; });
    named.erase(std::remove_if(named.begin(), named.end(), [](const Name &name) { return name.word.size() > most_letters; }), named.end());
    if (named.size() > most_items - given.size()) named.resize(most_items - given.size());
    if (given.empty() && named.empty()) return nullptr;
    return std::make_unique<Copies>(*this, std::move(given), named);
}

Copies::Copies(const Copying &copying, std::vector<TextNumber> numbers, const std::vector<Name> &named) : copying(copying), given(std::move(numbers)) {
    for (const TextNumber &number : given) {
        if (!number.whole) parts |= std::uint32_t{1} << worth.size();
        for (const Text &spelling : spellings(number))
            for (const Text &form : with_halves(spelling)) add(worth.size(), form);
        worth.push_back({number_gain, number_loss});
    }
    for (const auto &[word, certain] : named) {
        add(worth.size(), word);
        if (word.back() == U's') add(worth.size(), word.substr(0, word.size() - 1));
        worth.push_back(certain ? Worth{certain_gain, certain_loss} : Worth{name_gain, 0});
    }
    for (const Worth &item : worth) debt -= item.gain;
}

void Copies::add(std::size_t item, const Text &form) {
    spelled[form] |= std::uint32_t{1} << item;
    for (std::size_t end = 1; end <= form.size(); end++) begun[form.substr(0, end)] |= std::uint32_t{1} << item;
}

CopyStates Copies::read(const Ids &tokens) {
    CopyStates states = {{0, Text(), 'g'}};
    for (const std::int64_t token : tokens) states = advance(states, token).states;
    return states;
}

const Copies::Step &Copies::advance(const CopyStates &states, std::int64_t token) {
    std::map<std::int64_t, Step> &steps = known[states];
    const auto there = steps.find(token);
    if (there != steps.end()) return there->second;
    Step step{states, 0};
    for (const char32_t letter : copying.texts[static_cast<std::size_t>(token)]) {
        CopyStates found;
        for (const CopyState &state : step.states) next(state, letter, found);
        found.resize(std::min(found.size(), most_states));
        step.states = std::move(found);
    }
    if (!step.states.empty()) step.gain = gained(step.states) - gained(states);
    return steps.emplace(token, std::move(step)).first->second;
}

double Copies::gained(const CopyStates &states) const {
    double best = 0;
    for (const CopyState &state : states) {
        const std::uint32_t placed = state.placed | first(mask_of(begun, state.begun, state.placed));
        double gain = 0;
        for (std::size_t item = 0; item < worth.size(); item++)
            if (placed >> item & 1) gain += worth[item].gain;
        best = std::max(best, gain);
    }
    return best;
}

// Adds the states after a letter, each once.
void Copies::next(const CopyState &state, char32_t letter, CopyStates &found) const {
    const auto put = [&](CopyState made) {
        if (std::find(found.begin(), found.end(), made) == found.end()) found.push_back(std::move(made));
    };
    const bool digit = is_ascii_digit(letter), of_number = !state.begun.empty() && is_ascii_digit(state.begun[0]);
    const std::uint32_t longer = mask_of(begun, state.begun + letter, state.placed);
    const bool may_begin = digit ? state.after != 'm' && (state.after != 'p' || (longer & parts)) : state.after == 'g';
    if (longer && (!state.begun.empty() || may_begin)) put({state.placed, state.begun + letter, state.after});
    if (state.begun.empty() && !digit) put({state.placed, Text(), place(letter)});
    const std::uint32_t done = first(mask_of(spelled, state.begun, state.placed));
    if (!done || (of_number ? digit : is_letter(letter))) return;
    put({state.placed | done, Text(), of_number && is_number_mark(letter) ? (done & parts ? 'p' : 'm') : place(letter)});
}

std::set<std::int64_t> Copies::pieces(const CopyStates &states) const {
    std::set<std::int64_t> found;
    const auto add_tokens = [&](const Text &text) {
        const auto there = copying.tokens.find(text);
        if (there != copying.tokens.end()) found.insert(there->second.begin(), there->second.end());
    };
    for (const CopyState &state : states) {
        const std::size_t start = state.begun.size();
        for (const auto &[form, items] : spelled) {
            if (!(items & ~state.placed) || form.compare(0, start, state.begun) != 0) continue;
            for (std::size_t end = start + 1; end <= form.size(); end++) {
                const Text piece = form.substr(start, end - start);
                add_tokens(piece);
                if (start == 0) add_tokens(U" " + piece);
            }
        }
    }
    return found;
}

double Copies::cost_of_ending(const CopyStates &states, const Ids &tokens) const {
    Text text;
    for (const std::int64_t token : tokens) text += copying.texts[static_cast<std::size_t>(token)];
    double least = std::numeric_limits<double>::infinity();
    for (const CopyState &state : states) {
        const std::uint32_t placed = state.placed | first(mask_of(spelled, state.begun, state.placed));
        std::vector<const TextNumber *> lacking;
        double lost = 0;
        for (std::size_t item = 0; item < worth.size(); item++) {
            if (placed >> item & 1) continue;
            if (item < given.size()) lacking.push_back(&given[item]);
            else lost += worth[item].loss;
        }
        least = std::min(least, lost + number_loss * static_cast<double>(unspelled(lacking, text)));
    }
    return least;
}

}  // namespace t2r
