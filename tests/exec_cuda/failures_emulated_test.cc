// SPDX-License-Identifier: Apache-2.0
// Whatever call of CUDA fails, a run ends with one error that names the call, or does not notice;
// it never hangs, and nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/core/base/error.h"
#include "tests/exec/training.h"
#include "tests/exec_cuda/fixture.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using CudaFailures = OnCuda<::testing::Test>;

Training two_ranks() {
  Training training;
  training.model = tiny_llama();
  training.model.layers = 1;
  training.plan = tiny_plan(Strategy::kYafsdp, 2);
  training.plan.seq_len = 4;
  training.steps = 1;
  training.make_device = [](int) { return naive_device(); };
  return training;
}

/// A message each way.
Training two_stages() {
  Training training = two_ranks();
  training.model.layers = 2;
  training.plan.parallel.pp = 2;
  return training;
}

std::string error_of(const Training& training) {
  try {
    train(training);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_nothing_left() {
  EXPECT_EQ(cuda_on_cpu::pending_tasks(), 0u);
  EXPECT_EQ(cuda_on_cpu::allocated_bytes(), 0u);
  EXPECT_EQ(cuda_on_cpu::live_streams(), 0u);
  EXPECT_EQ(cuda_on_cpu::live_events(), 0u);
  EXPECT_EQ(cuda_on_cpu::live_host_allocations(), 0u);
}

TEST_F(CudaFailures, AGpuThatIsInUseIsRefusedBeforeAPlanIsBuilt) {
  cuda_on_cpu::FakeMachine machine;
  machine.memory_bytes = std::size_t{1} << 30;
  cuda_on_cpu::reset(machine);
  CudaDevice device;
  device.require_free(Bytes{1} << 30);
  const auto used = device.allocate(Bytes{1} << 29);
  device.require_free(Bytes{1} << 29);
  try {
    device.require_free((Bytes{1} << 29) + 1);
    FAIL() << "half of it is in use";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInfeasible);
    EXPECT_THAT(error.what(), HasSubstr("GPU 0 has 0.50 GiB of 1.00 free"));
  }
}

TEST_F(CudaFailures, NoneLeavesNothingBehind) {
  for (const Training& training : {two_ranks(), two_stages()}) {
    EXPECT_EQ(error_of(training), "");
    expect_nothing_left();
  }
}

void expect_one_error_of_any_call(const Training& training) {
  use_order(1);
  train(training);
  const std::int64_t calls = cuda_on_cpu::failable_calls();
  ASSERT_GT(calls, 300);
  int noticed = 0, tried = 0;
  // A prime step meets every kind of call of both ranks.
  for (std::int64_t n = 0; n < calls; n += 37, ++tried) {
    SCOPED_TRACE("call " + std::to_string(n));
    use_order(static_cast<std::uint64_t>(n));
    cuda_on_cpu::fail_call(n, cudaErrorUnknown);
    const std::string error = error_of(training);
    noticed += !error.empty();
    if (!error.empty()) {
      EXPECT_THAT(error, AnyOf(HasSubstr("unknown error"), HasSubstr("CUBLAS_STATUS")));
      EXPECT_THAT(error, HasSubstr(" failed at "));
    }
    EXPECT_EQ(cuda_on_cpu::pending_tasks(), 0u);
  }
  // What is given back when a run has ended may fail unnoticed.
  EXPECT_GT(noticed, tried / 2);
}

TEST_F(CudaFailures, OfAnyCallEndTheRunWithOneError) {
  expect_one_error_of_any_call(two_ranks());
}

TEST_F(CudaFailures, OfAnyCallOfStagesEndTheRunWithOneError) {
  expect_one_error_of_any_call(two_stages());
}

TEST_F(CudaFailures, OfAKernelWhileItRunsReachAllRanks) {
  for (const Training& training : {two_ranks(), two_stages()}) {
    for (const std::int64_t n : {0, 50, 200, 300}) {
      use_order(static_cast<std::uint64_t>(n));
      cuda_on_cpu::fail_task(n);
      EXPECT_THAT(error_of(training), HasSubstr("illegal memory access")) << "task " << n;
    }
  }
}

TEST_F(CudaFailures, OfMemoryNameTheBytes) {
  cuda_on_cpu::FakeMachine machine;
  machine.memory_bytes = 100000;
  cuda_on_cpu::reset(machine);
  EXPECT_THAT(error_of(two_ranks()), HasSubstr("bytes of GPU memory"));
}

}  // namespace
}  // namespace shardwright::exec
