// SPDX-License-Identifier: Apache-2.0
// The table of operations, by opcode with all its modifiers, and how one is made of a function of
// the values of one lane. Each family of opcodes has a file of its own.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "tests/support/ptx/machine.h"

namespace ptx {

struct Operation {
  Execute execute = nullptr;
  Kind kind = Kind::kLanewise;
};
using Operations = std::unordered_map<std::string, Operation>;

void add_integer_operations(Operations& table);
void add_float_operations(Operations& table);
void add_conversions(Operations& table);
void add_comparisons(Operations& table);
void add_moves(Operations& table);
void add_atomics_and_copies(Operations& table);
void add_warp_operations(Operations& table);
void add_matrix_operations(Operations& table);

/// ld and st: space, width and sign are in the modifiers. False when they are not known.
bool decode_access(const std::string& opcode, Instruction& instruction);

template <class T>
T from_bits(std::uint64_t bits) {
  if constexpr (std::is_same_v<T, bool>) {
    return bits != 0;
  } else if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(bits);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  } else {
    return std::bit_cast<T>(static_cast<std::uint16_t>(bits));
  }
}

template <class T>
std::uint64_t to_bits(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? 1 : 0;
  } else if constexpr (sizeof(T) == 8) {
    return std::bit_cast<std::uint64_t>(value);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return std::bit_cast<std::uint16_t>(value);
  }
}

inline constexpr std::uint32_t kAllLanes = 0xffffffffu;

/// body(lane) for the lanes of the mask.
template <class Body>
void for_lanes(std::uint32_t mask, Body&& body) {
  if (mask == kAllLanes) {
    for (unsigned lane = 0; lane < 32; ++lane) body(lane);
  } else {
    for (std::uint32_t left = mask; left != 0; left &= left - 1) {
      body(static_cast<unsigned>(std::countr_zero(left)));
    }
  }
}

template <class F, class Result, class... Arguments, std::size_t... I>
void execute_lanewise(Warp& warp, const Instruction& instruction, std::uint32_t mask,
                      std::index_sequence<I...>) {
  std::uint64_t* to = warp.row(instruction.row[0]);
  const std::uint64_t* from[] = {warp.row(instruction.row[1 + I])...};
  for_lanes(mask, [&](unsigned lane) {
    to[lane] = to_bits<Result>(F{}(from_bits<Arguments>(from[I][lane])...));
  });
}

/// The operation whose lanes each compute f(arguments).
template <class Result, class... Arguments, class F>
Operation lanewise(F) {
  return {[](Warp& warp, const Instruction& instruction, std::uint32_t mask) {
    execute_lanewise<F, Result, Arguments...>(warp, instruction, mask,
                                              std::index_sequence_for<Arguments...>{});
  }};
}

}  // namespace ptx
