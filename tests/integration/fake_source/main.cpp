// SPDX-License-Identifier: GPL-3.0-or-later
#include <cstdio>
const char * commit();
int main() { std::fprintf(stderr, "version: 0 (%s)\n", commit()); return 0; }
