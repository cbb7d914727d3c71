// SPDX-License-Identifier: Apache-2.0
// CHECK(condition, ...): invariants of the program itself. A failure is a bug of ours, so it prints
// the expression and aborts instead of throwing something a caller could swallow.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

#define SHARDWRIGHT_CHECK(condition, ...)                                                 \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fmt::print(stderr, "{}:{}: CHECK({}) failed: {}\n", __FILE__, __LINE__, #condition, \
                 fmt::format(__VA_ARGS__));                                               \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
