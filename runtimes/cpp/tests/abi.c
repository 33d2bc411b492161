/* abi FOLDER: calls the libt2r that it runs with, which may be of another release than this t2r.h. After every structure are
   bytes that no call may write or read as options. With GROWN, the header's structures have one more field, `grown`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <t2r.h>

#define GUARD 0xA5

/* A structure of this type, and the bytes after it. */
#define GUARDED(type) \
    struct {          \
        type made;    \
        unsigned char behind[64]; \
    }

static int whole(const unsigned char *behind) {
    for (size_t i = 0; i < 64; i++)
        if (behind[i] != GUARD) return 0;
    return 1;
}

#define EXPECT(good)                                                                     \
    do {                                                                                 \
        if (!(good)) return fprintf(stderr, "%d: %s: %s\n", __LINE__, #good, t2r_error()), 1; \
    } while (0)

int main(int count, char **arguments) {
    GUARDED(t2r_options) options;
    GUARDED(t2r_sampling) sampling;
    GUARDED(t2r_beam) beam;
    GUARDED(t2r_info) info;
    t2r_decoder *decoder, *translator;
    const int64_t prompt[] = {1, 3}, *tokens;
    size_t length, found;
    char path[4096];

    if (count != 2) return fputs("usage: abi FOLDER\n", stderr), 1;
    memset(&options, GUARD, sizeof options);
    memset(&sampling, GUARD, sizeof sampling);
    memset(&beam, GUARD, sizeof beam);
    memset(&info, GUARD, sizeof info);

    EXPECT(t2r_defaults(&options.made, sizeof options.made) == T2R_OK && whole(options.behind));
    EXPECT(options.made.size == sizeof options.made && options.made.companions == 1);
    snprintf(path, sizeof path, "%s/tiny.onnx", arguments[1]);
    EXPECT(t2r_open(path, &options.made, &decoder) == T2R_OK);
    EXPECT(t2r_get_info(decoder, &info.made, sizeof info.made) == T2R_OK && whole(info.behind));
    EXPECT(info.made.vocab_size == 17);
    EXPECT(t2r_sampling_defaults(decoder, &sampling.made, sizeof sampling.made) == T2R_OK && whole(sampling.behind));
    sampling.made.temperature = 0;
    EXPECT(t2r_generate(decoder, prompt, 2, 5, &sampling.made, NULL, NULL, &tokens, &length) == T2R_OK);
    for (size_t i = 0; i < length; i++) printf("%d ", (int)tokens[i]);

    snprintf(path, sizeof path, "%s/translator.onnx", arguments[1]);
    EXPECT(t2r_open(path, &options.made, &translator) == T2R_OK);
    EXPECT(t2r_beam_defaults(translator, &beam.made, sizeof beam.made) == T2R_OK && whole(beam.behind));
    beam.made.max_tokens = 6;
    EXPECT(t2r_translate(translator, prompt, 2, &beam.made, &found) == T2R_OK);
    EXPECT(t2r_translation(translator, 0, &tokens, &length, NULL) == T2R_OK);
    for (size_t i = 0; i < length; i++) printf("%d ", (int)tokens[i]);
#ifdef GROWN
    EXPECT(options.made.grown == 0 && sampling.made.grown == 0 && beam.made.grown == 0 && info.made.grown == 0);
    sampling.made.grown = 5; /* today's library must not ignore it */
    printf("%s", t2r_kind_name(t2r_generate(decoder, prompt, 2, 5, &sampling.made, NULL, NULL, &tokens, &length)));
#endif
    puts("");
    return t2r_close(decoder) || t2r_close(translator);
}
