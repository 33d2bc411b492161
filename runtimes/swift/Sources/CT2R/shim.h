/* t2r.h is found on the include path: CPATH, or -Xcc -I. */
#include <t2r.h>
