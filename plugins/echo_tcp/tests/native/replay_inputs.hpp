// Runs a fuzz target without a fuzzer: with ECHO_FUZZ_MAIN, it runs the inputs in the named files. Include it at the end of a target.
#pragma once

#ifdef ECHO_FUZZ_MAIN
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        const std::vector<char> input{std::istreambuf_iterator<char>(file), {}};
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t *>(input.data()), input.size());
    }
    std::printf("%d inputs\n", argc - 1);
    std::fflush(stdout);
    std::_Exit(0);  // without joining the threads of the test rig
}
#endif
