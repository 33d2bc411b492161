// cores ROOT: prints how many cores this process may use, by the control groups under ROOT; 0: all.
#include "cores.hpp"

#include <cstdio>

int main(int count, char **arguments) {
    if (count != 2) return 2;
    std::printf("%d\n", t2r::usable_threads(arguments[1]));
}
