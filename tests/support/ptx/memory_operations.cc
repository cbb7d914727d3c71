// SPDX-License-Identifier: Apache-2.0
// Loads, stores, atomic sums and maxima, and asynchronous copies.
#include <cstring>
#include <string>
#include <string_view>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

std::uint64_t read(const std::byte* from, std::size_t bytes, bool is_signed) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  if (!is_signed || bytes == 8) return value;
  const unsigned above = 64 - 8 * static_cast<unsigned>(bytes);
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << above) >> above);
}

void load_values(Warp& warp, const Instruction& i, std::uint32_t mask) {
  const std::size_t elements = i.first_rows;
  for_lanes(mask, [&](unsigned lane) {
    const std::uint64_t address =
        warp.row(i.row[elements])[lane] + static_cast<std::uint64_t>(i.offset[0]);
    const std::byte* from = warp.reach(i.space, address, elements * i.bytes, lane);
    for (std::size_t e = 0; e < elements; ++e) {
      warp.row(i.row[e])[lane] = read(from + e * i.bytes, i.bytes, i.is_signed);
    }
  });
}

void store_values(Warp& warp, const Instruction& i, std::uint32_t mask) {
  const std::size_t elements = static_cast<std::size_t>(i.rows - 1);
  for_lanes(mask, [&](unsigned lane) {
    const std::uint64_t address =
        warp.row(i.row[0])[lane] + static_cast<std::uint64_t>(i.offset[0]);
    std::byte* to = warp.reach(i.space, address, elements * i.bytes, lane);
    for (std::size_t e = 0; e < elements; ++e) {
      std::memcpy(to + e * i.bytes, &warp.row(i.row[1 + e])[lane], i.bytes);
    }
  });
}

template <class T>
T sum(T a, T b) {
  return static_cast<T>(a + b);
}
template <class T>
T larger(T a, T b) {
  return a > b ? a : b;
}

/// Lanes one after the other, with what each found before.
template <class T, Space kSpace, auto kJoin>
void atomic(Warp& warp, const Instruction& i, std::uint32_t mask) {
  for_lanes(mask, [&](unsigned lane) {
    const std::uint64_t address =
        warp.row(i.row[1])[lane] + static_cast<std::uint64_t>(i.offset[0]);
    std::byte* at = warp.reach(kSpace, address, sizeof(T), lane);
    T old;
    std::memcpy(&old, at, sizeof old);
    const T joined = kJoin(old, from_bits<T>(warp.row(i.row[2])[lane]));
    std::memcpy(at, &joined, sizeof joined);
    warp.row(i.row[0])[lane] = to_bits(old);
  });
}

template <std::size_t kSize>
void copy_later(Warp& warp, const Instruction& i, std::uint32_t mask) {
  for_lanes(mask, [&](unsigned lane) {
    const auto address = [&](std::size_t which) {
      return warp.row(i.row[which])[lane] + static_cast<std::uint64_t>(i.offset[which]);
    };
    const std::string size = std::to_string(kSize);
    if (warp.row(i.row[2])[lane] != kSize) warp.fail("cp.async of other than " + size + " bytes");
    const std::size_t bytes =
        i.rows > 3 ? static_cast<std::uint32_t>(warp.row(i.row[3])[lane]) : kSize;
    if (bytes > kSize) warp.fail("cp.async reads more than " + size + " bytes");
    Copy one;
    one.to = warp.reach(Space::kShared, static_cast<std::uint32_t>(address(0)), kSize, lane);
    one.bytes = bytes;
    one.size = kSize;
    if (bytes > 0) one.from = warp.reach(Space::kGlobal, address(1), kSize, lane);
    auto& groups = warp.copies[lane];
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back(one);
  });
}

void commit(Warp& warp, const Instruction&, std::uint32_t mask) {
  for_lanes(mask, [&](unsigned lane) {
    if (warp.copies[lane].empty()) warp.copies[lane].emplace_back();
    warp.copies[lane].emplace_back();
  });
}

void wait_for_groups(Warp& warp, const Instruction& i, std::uint32_t mask) {
  for_lanes(mask, [&](unsigned lane) {
    auto& groups = warp.copies[lane];
    const std::uint64_t left = warp.row(i.row[0])[lane];
    while (!groups.empty() && groups.size() - 1 > left) {
      for (const Copy& one : groups.front()) {
        std::memset(one.to, 0, one.size);
        if (one.bytes > 0) std::memcpy(one.to, one.from, one.bytes);
      }
      groups.erase(groups.begin());
    }
  });
}

/// Takes the next of the words between dots.
std::string_view next_word(std::string_view& text) {
  const std::size_t end = std::min(text.find('.'), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

}  // namespace

bool decode_access(const std::string& opcode, Instruction& instruction) {
  std::string_view text = opcode;
  const std::string_view name = next_word(text);
  if (name != "ld" && name != "st") return false;
  const std::string_view space = next_word(text);
  if (space == "global") {
    instruction.space = Space::kGlobal;
  } else if (space == "shared") {
    instruction.space = Space::kShared;
  } else if (space == "local") {
    instruction.space = Space::kLocal;
  } else if (space == "param" && name == "ld") {
    instruction.space = Space::kParameters;
  } else {
    return false;
  }
  std::string_view type = next_word(text);
  if (type == "v2" || type == "v4") type = next_word(text);
  if (type.size() < 2 || !text.empty()) return false;
  const std::string_view bits = type.substr(1);
  instruction.bytes = bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
  instruction.is_signed = type.front() == 's';
  instruction.execute = name == "ld" ? load_values : store_values;
  return instruction.bytes > 0 && std::string_view("busf").find(type.front()) != text.npos;
}

void add_atomics_and_copies(Operations& table) {
  table["atom.shared.add.u64"] = {atomic<std::uint64_t, Space::kShared, &sum<std::uint64_t>>};
  table["atom.global.add.u64"] = {atomic<std::uint64_t, Space::kGlobal, &sum<std::uint64_t>>};
  table["atom.shared.add.u32"] = {atomic<std::uint32_t, Space::kShared, &sum<std::uint32_t>>};
  table["atom.global.max.u32"] = {atomic<std::uint32_t, Space::kGlobal, &larger<std::uint32_t>>};
  table["atom.global.add.u32"] = {atomic<std::uint32_t, Space::kGlobal, &sum<std::uint32_t>>};
  table["cp.async.cg.shared.global"] = {copy_later<16>};
  table["cp.async.ca.shared.global"] = {copy_later<4>};
  table["cp.async.commit_group"] = {commit};
  table["cp.async.wait_group"] = {wait_for_groups};
}

}  // namespace ptx
