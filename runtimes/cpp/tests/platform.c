/* platform FOLDER PLUGIN: tokens of golden graphs on the CPU and on the plugin, which must be equal. */
#include <stdio.h>
#include <string.h>
#include <t2r.h>

#define MOST 24

static int failed(const char *name) {
    return fprintf(stderr, "%s: %s\n", name, t2r_error()), 1;
}

/* Generates tokens on the CPU, or on the provider that is not NULL. */
static int generated(const char *path, const char *const *provider, int64_t *tokens, size_t *length) {
    const int64_t prompt[] = {1, 3, 2}, *found;
    t2r_options options;
    t2r_sampling sampling;
    t2r_decoder *decoder;

    if (t2r_defaults(&options, sizeof options) != T2R_OK) return failed(path);
    options.provider = provider;
    options.provider_count = provider ? 1 : 0;
    if (t2r_open(path, &options, &decoder) != T2R_OK) return failed(path);
    if (t2r_sampling_defaults(decoder, &sampling, sizeof sampling) != T2R_OK) return failed(path);
    sampling.temperature = 0;
    if (t2r_generate(decoder, prompt, 3, MOST, &sampling, NULL, NULL, &found, length) != T2R_OK) return failed(path);
    memcpy(tokens, found, *length * sizeof *tokens);
    return t2r_close(decoder) == T2R_OK ? 0 : failed(path);
}

int main(int count, char **arguments) {
    static const char *const names[] = {"tiny", "gated", "window", "w4"};

    if (count != 3) return fputs("usage: platform FOLDER PLUGIN\n", stderr), 1;
    for (size_t name = 0; name < sizeof names / sizeof *names; name++) {
        const char *const plugin[] = {arguments[2]};
        int64_t expected[MOST], tokens[MOST];
        size_t length, found;
        char path[4096];

        snprintf(path, sizeof path, "%s/%s.onnx", arguments[1], names[name]);
        if (generated(path, NULL, expected, &length) || generated(path, plugin, tokens, &found)) return 1;
        if (!length || found != length || memcmp(tokens, expected, length * sizeof *tokens))
            return fprintf(stderr, "%s: other tokens on the plugin\n", names[name]), 1;
        printf("%s %d\n", names[name], (int)length);
    }
    return 0;
}
