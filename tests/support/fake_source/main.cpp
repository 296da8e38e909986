// SPDX-License-Identifier: GPL-3.0-or-later
#include <cstdio>
const char * commit();
// As upstream's assertions do, it names its source file.
int main() { std::fprintf(stderr, "version: 0 (%s)\nbuilt from %s\n", commit(), __FILE__); return 0; }
