// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, each with a GPU of its own: whatever a rank makes,
// launches, records or allocates is its own GPU's, and the numbers are those of ranks that share
// one.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>

#include "tests/exec/training.h"
#include "tests/exec_cuda/fixture.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using cuda_on_cpu::Call;
using cuda_on_cpu::CallKind;

constexpr int kGpus = 4;

void use_gpus(std::uint64_t seed) {
  cuda_on_cpu::FakeMachine machine;
  machine.devices = kGpus;
  machine.seed = seed;
  cuda_on_cpu::reset(machine);
}

std::unique_ptr<CudaDevice> device_on(int gpu) {
  CudaDeviceOptions options;
  options.attention = "naive";
  options.gpu = gpu;
  for (int peer = 0; peer < kGpus; ++peer) options.peers.push_back(peer);
  return std::make_unique<CudaDevice>(options);
}

Training four_ranks(Strategy strategy) {
  Training training;
  training.model = uneven_llama();
  training.plan = tiny_plan(strategy, kGpus);
  training.plan.seq_len = 8;
  training.plan.param_dtype = DType::kBf16;
  if (strategy == Strategy::kHsdp) training.plan.shard_group = 2;
  training.steps = 1;
  training.options.poison = true;
  return training;
}

class CudaAffinity : public ::testing::TestWithParam<Strategy> {};

TEST_P(CudaAffinity, FourGpusTrainAsOneThatIsShared) {
  Training training = four_ranks(GetParam());
  use_order(1);
  training.make_device = [](int) { return naive_device(); };
  const auto shared = train(training);

  use_gpus(2);
  training.make_device = device_on;
  expect_same_training(shared, train(training));

  std::map<int, std::map<CallKind, int>> made;
  for (const Call& call : cuda_on_cpu::call_log()) {
    if (call.stream >= 0) {
      EXPECT_EQ(call.stream_gpu, call.gpu) << call.name;
    }
    ++made[call.gpu][call.kind];
  }
  // The ranks do the same, so no GPU carries anything for another one.
  ASSERT_EQ(made.size(), static_cast<std::size_t>(kGpus));
  for (const auto& [gpu, kinds] : made) {
    for (const CallKind kind : {CallKind::kMalloc, CallKind::kHostAlloc, CallKind::kCreate}) {
      EXPECT_EQ(kinds.at(kind), made.begin()->second.at(kind)) << "on GPU " << gpu;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaAffinity,
                         ::testing::Values(Strategy::kDdp, Strategy::kZero1, Strategy::kZero2,
                                           Strategy::kZero3, Strategy::kFsdp1,
                                           Strategy::kFsdp1GradOp, Strategy::kFsdp2,
                                           Strategy::kFsdp2NoReshard, Strategy::kHsdp,
                                           Strategy::kYafsdp, Strategy::kYafsdpZero2),
                         parameter_name);

// A process of its own for each rank: it must leave no context on the GPU that is current when a
// thread begins.
TEST(CudaDeviceAffinity, AThreadTouchesOnlyTheGpuOfItsDevice) {
  use_gpus(3);
  Training training = four_ranks(Strategy::kSingle);
  training.plan.gpus = 1;
  training.make_device = [](int) { return device_on(kGpus - 1); };
  std::async(std::launch::async, [&] { train(training); }).get();
  int calls = 0;
  for (const Call& call : cuda_on_cpu::call_log()) {
    if (call.kind == CallKind::kQuery) continue;
    EXPECT_EQ(call.gpu, kGpus - 1) << call.name;
    ++calls;
  }
  EXPECT_GT(calls, 300);
}

// The fake tells GPUs apart, so the tests above can fail.
TEST(FakeGpus, RefuseWhatBelongsToAnother) {
  use_gpus(4);
  cudaStream_t stream = nullptr;
  cudaEvent_t mine = nullptr, theirs = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&mine), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&theirs), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(theirs, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cuda_on_cpu::enqueue_kernel(stream, {}, [] {}), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(mine, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 256), cudaSuccess);
  EXPECT_FALSE(cuda_on_cpu::reaches(1, data));
  EXPECT_EQ(cudaMemsetAsync(data, 0, 256, stream), cudaErrorInvalidValue);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(2, 0), cudaSuccess);
  EXPECT_TRUE(cuda_on_cpu::reaches(1, data));

  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(mine), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(theirs), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}  // namespace
}  // namespace shardwright::exec
