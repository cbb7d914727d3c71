#include <fmt/core.h>
int main() { fmt::print("shardwright\n"); }
