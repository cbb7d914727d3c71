// SPDX-License-Identifier: Apache-2.0
// That the oracle would find a wrong instruction: one at a time is planted into the PTX of a few
// kernels, and a small launch must differ from the emulation or break a rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/rope.h"
#include "kernels/exact_sum.h"
#include "kernels/host/rope.h"
#include "tests/kernels_cuda/mma_probe.h"
#include "tests/kernels_cuda/random_attention.h"
#include "tests/kernels_cuda/support.h"
#include "tests/support/ptx/math_functions.h"
#include "tests/support/ptx/oracle.h"

namespace ptx {
namespace {

using shardwright::kernels::BFloat16;
using shardwright::kernels::testing::OnDevice;
using shardwright::kernels::testing::random_data;
namespace cuda = shardwright::kernels::cuda;

void multiply_fragments() {
  const OnDevice<BFloat16> a(random_data<BFloat16>(1, 256).typed);
  const OnDevice<BFloat16> b(random_data<BFloat16>(2, 128).typed);
  for (const bool turned : {false, true}) {
    const OnDevice<float> sum(random_data<float>(3, 128).typed);
    cuda::mma_probe(nullptr, a.data(), b.data(), turned, sum.data());
    sum.get();
  }
}

void load_fragments() {
  const OnDevice<BFloat16> in(random_data<BFloat16>(1, 256).typed);
  for (const bool turned : {false, true}) {
    const OnDevice<std::uint32_t> out(128);
    cuda::ldmatrix_probe(nullptr, in.data(), turned, out.data());
    out.get();
  }
}

void turn_heads() {
  const std::int64_t tokens = 23, seq = 12, heads = 3, head_dim = 16;
  const shardwright::kernels::RopeTable table({}, seq, head_dim);
  const auto copy = [&](const float* from) {
    return OnDevice<float>(std::vector<float>(from, from + seq * table.pairs()));
  };
  const OnDevice<float> cosine = copy(table.cosine()), sine = copy(table.sine());
  for (const bool backward : {false, true}) {
    const OnDevice<float> x(random_data<float>(1, tokens * heads * head_dim).typed);
    cuda::rope<float>(nullptr, {tokens, heads, head_dim, heads * head_dim},
                      {seq, table.pairs(), cosine.data(), sine.data()}, nullptr, seq, backward,
                      x.data());
    x.get();
  }
}

void add_up_arrays() {
  const std::int64_t size = 1000;
  const OnDevice<BFloat16> a(random_data<BFloat16>(1, size).typed),
      b(random_data<BFloat16>(2, size).typed);
  const void* inputs[] = {a.data(), b.data()};
  const OnDevice<float> sum(size);
  cuda::fold<BFloat16, float>(nullptr, inputs, sum.data(), false, size);
  sum.get();
}

void add_up_step() {
  using shardwright::kernels::ExactSum;
  const std::int64_t ranks = 5, micro_steps = 60, words = ExactSum::kWords + 2 * micro_steps;
  std::vector<std::int64_t> records;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    ExactSum squares;
    squares.add_squares(
        std::span<const float>(random_data<float>(static_cast<std::uint64_t>(rank), 100).typed));
    for (const std::int64_t word : squares.words()) records.push_back(word);
    for (std::int64_t step = 0; step < micro_steps; ++step) {
      records.push_back(std::bit_cast<std::int64_t>(1.5 + static_cast<double>(rank + step)));
      records.push_back(10 + rank);
    }
  }
  const OnDevice<std::int64_t> data(records);
  const OnDevice<cuda::StepTotalsView> totals(1);
  cuda::step_totals(nullptr, {data.data(), words, ranks, micro_steps}, 1.0, 0.0, totals.data());
  totals.get();
}

void attend() {
  using shardwright::kernels::testing::RandomAttention;
  compute(*cuda::make_flash_attention(),
          RandomAttention({.batch = 1, .seq = 131, .heads = 2, .kv_heads = 1, .head_dim = 64}));
}

void lose() {
  const std::int64_t rows = 3, vocab = 701;
  const OnDevice<BFloat16> logits(random_data<BFloat16>(1, rows * vocab, 4.0).typed);
  const OnDevice<std::int32_t> targets(std::vector<std::int32_t>{5, 600, 30});
  const OnDevice<double> sum(std::vector<double>{0.0}), losses(rows);
  const OnDevice<std::int64_t> count(std::vector<std::int64_t>{0});
  cuda::cross_entropy<BFloat16>(nullptr, {logits.data(), rows, vocab}, targets.data(), -100, true,
                                sum.data(), count.data(), losses.data());
  sum.get();
}

void square() {
  const std::vector<float> x = random_data<float>(1, 20011).typed;
  const OnDevice<float> in(x);
  using shardwright::kernels::ExactSum;
  const OnDevice<std::int64_t> words{std::vector<std::int64_t>(ExactSum::kWords)};
  cuda::sum_of_squares<float>(nullptr, in.data(), std::ssize(x), words.data());
  words.get();
}

struct Subject {
  std::string file, kernel;  // a part of its name
  void (*launch)();
};
const Subject kMultiply{"mma_probe", "mma_probe_kernel", multiply_fragments};
const Subject kLoad{"mma_probe", "ldmatrix_probe_kernel", load_fragments};
const Subject kRope{"rope", "rope_kernel<float, 4>", turn_heads};
const Subject kFold{"elementwise",
                    "elementwise_kernel<8, shardwright::kernels::cuda::(anonymous namespace)::Fold<"
                    "shardwright::kernels::BFloat16, float>",
                    add_up_arrays};
const Subject kTotals{"step_totals", "step_totals_kernel", add_up_step};
const Subject kFlash{"flash_attention_forward", "flash_forward_kernel<64>", attend};
const Subject kKeys{"flash_attention_backward", "flash_backward_kv_kernel<64>", attend};
const Subject kLoss{"loss", "cross_entropy_kernel<shardwright::kernels::BFloat16, false>", lose};
const Subject kSquares{"optimizer", "squares_kernel<float, 4>", square};

/// Where the n-th instruction with that opcode stands in the kernel, guard and all; empty: nowhere.
struct Place {
  std::size_t begin = 0, end = 0;
};
Place find(const std::string& text, const Subject& subject, const std::string& opcode, int n) {
  for (std::size_t at = text.find(".entry "); at != std::string::npos;
       at = text.find(".entry ", at + 1)) {
    const std::string name = text.substr(at + 7, text.find('(', at) - at - 7);
    if (demangled(name).find(subject.kernel) == std::string::npos) continue;
    const std::size_t last = std::min(text.find(".entry ", at + 1), text.size());
    for (std::size_t line = text.find('\n', at); line < last; line = text.find('\n', line + 1)) {
      const std::size_t end = text.find('\n', line + 1);
      std::istringstream words(text.substr(line, end - line));
      std::string word;
      words >> word;
      if (word.starts_with('@')) words >> word;
      while (!word.empty() && word.back() == ';') word.pop_back();
      if (word == opcode && n-- == 0) return {line + 1, end};
    }
  }
  return {};
}

/// What is done to an instruction's text.
using Change = std::function<std::string(std::string)>;

bool in_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '%' || c == '_' || c == '-' ||
         c == '+' || c == '[' || c == ']' || c == '$';
}

/// Exchanges two operands, counted from 0 through all braces.
Change swapped(std::size_t i, std::size_t j) {
  return [=](const std::string& line) {
    std::size_t at = line.find_first_not_of(" \t{");
    if (line[at] == '@') at = line.find_first_not_of(" \t", line.find_first_of(" \t", at));
    at = line.find_first_of(" \t", at);
    std::vector<std::pair<std::size_t, std::size_t>> operands;
    while ((at = static_cast<std::size_t>(
                std::find_if(line.begin() + static_cast<std::ptrdiff_t>(at), line.end(), in_name) -
                line.begin())) < line.size()) {
      std::size_t end = at;
      while (end < line.size() && in_name(line[end])) ++end;
      operands.emplace_back(at, end - at);
      at = end;
    }
    const auto [a, a_size] = operands.at(i);
    const auto [b, b_size] = operands.at(j);
    return line.substr(0, a) + line.substr(b, b_size) + line.substr(a + a_size, b - a - a_size) +
           line.substr(a, a_size) + line.substr(b + b_size);
  };
}
Change replaced(const std::string& from, const std::string& to) {
  return [=](std::string line) {
    const std::size_t at = line.find(from);
    return at == std::string::npos ? line : line.replace(at, from.size(), to);
  };
}
Change behind(int bytes) {
  return [=](std::string line) {
    const std::size_t plus = line.find('+'), end = line.find(']');
    const int old = plus < end ? std::stoi(line.substr(plus + 1)) : 0;
    const std::size_t from = std::min(plus, end);
    return line.replace(from, end - from, "+" + std::to_string(old + bytes));
  };
}
const Change kWithoutIt = [](const std::string&) { return std::string(); };
const Change kWrongGuard = replaced("@%", "@!%");

struct Mutation {
  Subject subject;
  std::string opcode;
  int n;
  Change change;
};

const std::string kMma = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32";
const std::string kLdmatrix = "ldmatrix.sync.aligned.m8n8.";

// Of the kernels whose PTX every build with nvcc makes.
const std::vector<Mutation> kMutations = {
    {kMultiply, kMma, 0, swapped(5, 6)},
    {kMultiply, kMma, 0, swapped(8, 9)},
    {kMultiply, kMma, 0, swapped(11, 12)},
    {kMultiply, kLdmatrix + "x4.shared.b16", 0, swapped(1, 2)},
    {kMultiply, kLdmatrix + "x4.trans.shared.b16", 0, replaced(".trans", "")},
    {kMultiply, "cp.async.cg.shared.global", 1, replaced("16,", "8,")},
    {kMultiply, "cp.async.wait_group", 0, replaced("0;", "1;")},
    {kMultiply, "ld.global.f32", 2, behind(4)},
    {kMultiply, "st.global.f32", 3, behind(-4)},
    {kLoad, kLdmatrix + "x4.trans.shared.b16", 0, swapped(0, 3)},
    {kLoad, "st.shared.u16", 4, behind(2)},
    {kLoad, "bar.warp.sync", 0, replaced("-1", "65535")},
    {kRope, "fma.rn.f32", 0, swapped(1, 3)},
    {kRope, "neg.f32", 0, replaced("neg", "mov")},
    {kRope, "ld.global.v4.f32", 0, swapped(0, 1)},
    {kRope, "setp.ge.s64", 0, replaced(".ge", ".gt")},
    {kRope, "rem.u32", 0, swapped(1, 2)},
    {kFold, "shl.b32", 1, replaced(", 16", ", 15")},
    {kFold, "st.global.v4.b32", 0, swapped(1, 2)},
    {kFold, "bra", 0, kWrongGuard},
    {kTotals, "bar.sync", 1, kWithoutIt},
    {kTotals, "sub.s64", 0, swapped(1, 2)},
    {kTotals, "ld.shared.f64", 0, behind(8)},
    {kTotals, "div.rn.f64", 0, swapped(1, 2)},
};

// Of kernels whose PTX is made for scripts/nightly.
const std::vector<Mutation> kSlowMutations = {
    {kFlash, kMma, 0, swapped(4, 5)},
    {kFlash, kMma, 63, swapped(8, 9)},
    {kFlash, kLdmatrix + "x4.trans.shared.b16", 15, replaced(".trans", "")},
    {kFlash, "shfl.sync.bfly.b32", 25, swapped(3, 4)},
    {kFlash, "bar.sync", 1, kWithoutIt},
    {kFlash, "cp.async.wait_group", 0, replaced("0;", "1;")},
    {kKeys, kMma, 10, swapped(6, 7)},
    {kKeys, kMma, 20, swapped(8, 9)},
    {kKeys, "bar.sync", 3, kWithoutIt},
    {kKeys, "bar.sync", 1, kWithoutIt},
    {kLoss, "shfl.sync.bfly.b32", 0, swapped(3, 4)},
    {kLoss, "bar.sync", 0, kWithoutIt},
    {kSquares, "atom.shared.add.u64", 67, behind(8)},
};

std::string text_of(const std::string& file) {
  std::ifstream in(std::string(SHARDWRIGHT_PTX_FOLDER) + "/" + file + ".ptx");
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What the oracle says to a launch with that PTX.
std::vector<std::string> complaints(const std::string& text, void (*launch)()) {
  std::vector<std::string> heard;
  Oracle oracle([&](const std::string& what) { heard.push_back(what); });
  try {
    oracle.add(text);
  } catch (const Failure& failure) {
    return {failure.what()};
  }
  cuda_on_cpu::set_runner([&](const cuda_on_cpu::Launch& one) { oracle.run(one); });
  launch();
  cuda_on_cpu::set_runner({});
  EXPECT_GT(oracle.coverage().launches, 0u);
  return heard;
}

void expect_found(const std::vector<Mutation>& mutations) {
  for (const auto& [subject, opcode, n, change] : mutations) {
    std::string text = text_of(subject.file);
    const auto [begin, end] = find(text, subject, opcode, n);
    ASSERT_GT(end, begin) << "no " << opcode << " in " << subject.kernel;
    const std::string line = text.substr(begin, end - begin), wrong = change(line);
    ASSERT_NE(wrong, line);
    text.replace(begin, end - begin, wrong);
    EXPECT_THAT(complaints(text, subject.launch), ::testing::Not(::testing::IsEmpty()))
        << line << "\nmay as well be\n"
        << wrong;
  }
}

TEST(PtxMutation, EveryPlantedMistakeIsFound) {
  if (text_of("mma_probe").empty()) GTEST_SKIP() << "PTX of kernels needs nvcc";
  EXPECT_GE(kMutations.size(), 20u);
  for (const Subject& subject : {kMultiply, kLoad, kRope, kFold, kTotals}) {
    EXPECT_THAT(complaints(text_of(subject.file), subject.launch), ::testing::IsEmpty());
  }
  expect_found(kMutations);
}

TEST(PtxMutation, EveryMistakePlantedInLargeKernelsIsFound) {
  const std::string math = text_of("math_functions");
  if (math.empty()) GTEST_SKIP() << "needs the target kernel_ptx";
  use_math_functions(math);
  for (const Subject& subject : {kFlash, kKeys, kLoss, kSquares}) {
    EXPECT_THAT(complaints(text_of(subject.file), subject.launch), ::testing::IsEmpty());
  }
  expect_found(kSlowMutations);
  cuda_on_cpu::math_functions = {};
}

}  // namespace
}  // namespace ptx
