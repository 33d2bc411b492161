#include "unicode.hpp"

#include <array>

#include "utf8.hpp"

namespace t2r {

namespace {

enum Break { other, cr, lf, control, extend, zwj, regional, prepend, spacing, hangul_l, hangul_v, hangul_t, hangul_lv, hangul_lvt };

std::uint16_t look_up(char32_t code) { return range_of(character_ranges, character_range_count, code).flags; }

Break break_of(char32_t code, std::uint16_t flags) {
    if (code >= 0xAC00 && code <= 0xD7A3) return (code - 0xAC00) % 28 ? hangul_lvt : hangul_lv;
    return static_cast<Break>(flags >> 12);
}

// The context before a character that the rules need.
struct Before {
    Break kind;
    unsigned regionals;     // consecutive regional indicators
    bool pictographic;      // a pictograph and extensions
    bool joined;            // a joiner after them
    bool consonant, linked;  // a consonant and extensions; linked: with a linker among them
};

bool breaks(const Before &before, Break next, std::uint16_t flags) {
    const Break last = before.kind;
    if (last == cr && next == lf) return false;
    if (last == cr || last == lf || last == control || next == cr || next == lf || next == control) return true;
    if (last == hangul_l && (next == hangul_l || next == hangul_v || next == hangul_lv || next == hangul_lvt)) return false;
    if ((last == hangul_lv || last == hangul_v) && (next == hangul_v || next == hangul_t)) return false;
    if ((last == hangul_lvt || last == hangul_t) && next == hangul_t) return false;
    if (next == extend || next == zwj || next == spacing || last == prepend) return false;
    if (before.linked && (flags & is_consonant)) return false;
    if (before.joined && (flags & is_pictographic)) return false;
    return !(last == regional && next == regional && before.regionals % 2 == 1);
}

}  // namespace

std::uint16_t flags_of(char32_t code) {
    static const auto latin = [] {
        std::array<std::uint16_t, 256> made{};
        for (char32_t c = 0; c < 256; c++) made[c] = look_up(c);
        return made;
    }();
    return code < 256 ? latin[code] : look_up(code);
}

std::size_t grapheme_size(std::string_view text) {
    Before before{};
    std::size_t at = 0;
    while (at < text.size()) {
        const Decoded character = decode_utf8(text, at);
        const std::uint16_t flags = flags_of(character.code);
        const Break kind = break_of(character.code, flags);
        if (at > 0 && breaks(before, kind, flags)) return at;
        before.joined = before.pictographic && kind == zwj;
        before.pictographic = (flags & is_pictographic) || (before.pictographic && kind == extend);
        if (flags & is_consonant) before.consonant = true, before.linked = false;
        else if (flags & is_linker) before.linked = before.consonant;
        else if (!(flags & is_conjunct_extend)) before.consonant = before.linked = false;
        before.regionals = kind == regional ? before.regionals + 1 : 0;
        before.kind = kind;
        at += character.size;
    }
    return at;
}

}  // namespace t2r
