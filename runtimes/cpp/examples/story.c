/* story GRAPH: read one token and print the numbers of those that follow, the likeliest each. */
#include <stdio.h>
#include <t2r.h>

static int failed(void) {
    fprintf(stderr, "%s\n", t2r_error());
    return 2;
}

int main(int count, char **arguments) {
    t2r_decoder *decoder;
    t2r_info info;
    const float *logits;
    if (count != 2) return fprintf(stderr, "usage: story GRAPH\n"), 2;
    if (t2r_open(arguments[1], NULL, &decoder) || t2r_get_info(decoder, &info, sizeof info)) return failed();
    int64_t token = info.bos_token < 0 ? 0 : info.bos_token;
    for (int written = 0; written < 20; written++) {
        if (t2r_step(decoder, &token, 1, &logits)) return failed();
        token = 0;
        for (int64_t next = 1; next < info.vocab_size; next++)
            if (logits[next] > logits[token]) token = next;
        printf("%lld ", (long long)token);
    }
    printf("\n");
    return t2r_close(decoder) ? failed() : 0;
}
