/* story GRAPH PROMPT: the prompt, and what the model writes after it. */
#include <stdio.h>
#include <string.h>
#include <t2r.h>

static int failed(void) {
    fprintf(stderr, "%s\n", t2r_error()); /* one line: what was expected, what was received, what to do */
    return 2;
}

int main(int count, char **arguments) {
    t2r_decoder *decoder;
    t2r_tokenizer *tokenizer;
    t2r_sampling sampling;
    const int64_t *tokens;
    const char *text;
    size_t length;

    if (count != 3) return fprintf(stderr, "usage: story GRAPH PROMPT\n"), 2;
    if (t2r_open(arguments[1], NULL, &decoder) != T2R_OK ||
        t2r_sampling_defaults(decoder, &sampling, sizeof sampling) != T2R_OK ||
        t2r_open_tokenizer(decoder, &tokenizer) != T2R_OK)
        return failed();
    sampling.temperature = 0; /* the likeliest token each time */
    if (t2r_encode(tokenizer, arguments[2], strlen(arguments[2]), 1, &tokens, &length) != T2R_OK ||
        t2r_generate(decoder, tokens, length, 200, &sampling, NULL, NULL, &tokens, &length) != T2R_OK ||
        t2r_decode(tokenizer, tokens, length, &text, NULL) != T2R_OK)
        return failed();
    printf("%s%s\n", arguments[2], text);
    t2r_close_tokenizer(tokenizer);
    t2r_close(decoder);
    return 0;
}
