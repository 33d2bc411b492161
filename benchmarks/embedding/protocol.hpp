// How a timing program is asked: `check N` on a line gives the first N numbers that it computes, `time N` the milliseconds
// of N turns after a few that do not count; a line of numbers each, "ready" before them all.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>

inline constexpr int discarded = 5;

// check(N) prints numbers with a space behind each; turn() does what is timed.
template <typename Check, typename Begin, typename Turn>
int serve(const Check &check, const Begin &begin, const Turn &turn) {
    std::cout << "ready" << std::endl;
    std::string word;
    for (long count = 0; std::cin >> word >> count;) {
        if (word == "check") {
            check(count);
        } else {
            begin();
            for (int i = 0; i < discarded; i++) turn();
            for (long i = 0; i < count; i++) {
                const auto before = std::chrono::steady_clock::now();
                turn();
                std::cout << std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count() << " ";
            }
        }
        std::cout << std::endl;
    }
    return 0;
}

// A greedy text that begins with token `first`: reset() goes to its start, step(token) gives the logits behind it.
template <typename Reset, typename Step>
int serve_greedy(std::int64_t first, std::int64_t vocabulary, const Reset &reset, const Step &step) {
    std::int64_t token = first;
    const auto begin = [&] {
        reset();
        token = first;
    };
    const auto turn = [&] {
        const float *logits = step(token);
        token = std::max_element(logits, logits + vocabulary) - logits;
    };
    const auto check = [&](long count) {
        begin();
        for (long i = 0; i < count; i++) {
            turn();
            std::cout << token << " ";
        }
    };
    return serve(check, begin, turn);
}
