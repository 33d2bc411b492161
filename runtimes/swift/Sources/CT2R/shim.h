/* t2r.h from where the compiler finds headers: CPATH, or -Xcc -I. */
#include <t2r.h>
