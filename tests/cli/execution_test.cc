// SPDX-License-Identifier: Apache-2.0
// Which device and which communicator a run gets: every wish on every kind of machine.
#include "cli/machine/execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

using ::testing::HasSubstr;

ExecutionOffer everything(int gpus) {
  ExecutionOffer offer;
  offer.cuda_built = offer.nccl_built = offer.mpi_built = true;
  for (int i = 0; i < gpus; ++i) {
    offer.gpus.push_back({i, "NVIDIA H200", Bytes{150109106995}, 132, ""});
  }
  if (gpus == 0) offer.gpu_problem = "there is no CUDA driver on this machine";
  return offer;
}

exec::LaunchEnvironment processes(exec::Launcher launcher) {
  exec::LaunchEnvironment launch;
  launch.launcher = launcher;
  launch.ranks = 4;
  return launch;
}

struct Refusal {
  std::string what;
  ExitCode code;
};

Refusal refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {"nothing was thrown", ExitCode::kDone};
}

TEST(Execution, TakesAGpuWhereThereIsOne) {
  EXPECT_EQ(choose_device("auto", everything(1)).kind, DeviceKind::kCuda);
  EXPECT_EQ(choose_device("cuda", everything(2)).why, "2 x NVIDIA H200");
  EXPECT_EQ(choose_device("host", everything(1)).kind, DeviceKind::kHost);
  const DeviceChoice none = choose_device("auto", everything(0));
  EXPECT_EQ(none.kind, DeviceKind::kHost);
  EXPECT_EQ(none.why, "no GPU: there is no CUDA driver on this machine");
}

TEST(Execution, SaysInOneSentenceWhatIsMissing) {
  const Refusal no_driver = refusal([] { choose_device("cuda", everything(0)); });
  EXPECT_EQ(no_driver.code, ExitCode::kMissingDevice);
  EXPECT_EQ(no_driver.what, "device is 'cuda', but there is no CUDA driver on this machine");
  ExecutionOffer no_toolkit = everything(0);
  no_toolkit.cuda_built = false;
  no_toolkit.why_no_cuda = "nvcc is of CUDA 12.4, expected 12.9 or newer";
  EXPECT_EQ(
      refusal([&] { choose_device("cuda", no_toolkit); }).what,
      "device is 'cuda', but this build has no cuda executor, because nvcc is of CUDA 12.4, "
      "expected 12.9 or newer; where CUDA 12.9 or newer is installed, scripts/quickstart builds "
      "one");
}

TEST(Execution, ConnectsThreads) {
  const exec::LaunchEnvironment alone;
  const auto choose = [&](const char* wish, DeviceKind device, std::int64_t ranks, int gpus) {
    return choose_transport(wish, device, alone, ranks, everything(gpus));
  };
  EXPECT_EQ(choose("auto", DeviceKind::kHost, 4, 0), Transport::kLocal);
  EXPECT_EQ(choose("mpi", DeviceKind::kHost, 4, 0), Transport::kMpi);
  EXPECT_EQ(choose("auto", DeviceKind::kCuda, 1, 8), Transport::kLocal);
  EXPECT_EQ(choose("auto", DeviceKind::kCuda, 8, 8), Transport::kNccl);
  EXPECT_EQ(choose("auto", DeviceKind::kCuda, 4, 1), Transport::kLocal) << "they share the GPU";
  EXPECT_EQ(choose("local", DeviceKind::kCuda, 8, 8), Transport::kLocal);
  EXPECT_EQ(choose("nccl", DeviceKind::kCuda, 1, 1), Transport::kNccl);
  EXPECT_THAT(refusal([&] { choose("nccl", DeviceKind::kCuda, 4, 1); }).what,
              HasSubstr("4 ranks and 1 GPUs"));
  EXPECT_EQ(refusal([&] { choose("nccl", DeviceKind::kHost, 1, 1); }).code,
            ExitCode::kMissingDevice);
  EXPECT_THAT(refusal([&] { choose("mpi", DeviceKind::kCuda, 1, 1); }).what,
              HasSubstr("expected auto, local or nccl"));
  ExecutionOffer no_nccl = everything(8);
  no_nccl.nccl_built = false;
  EXPECT_EQ(choose_transport("auto", DeviceKind::kCuda, alone, 8, no_nccl), Transport::kLocal);
}

TEST(Execution, ConnectsProcesses) {
  const auto mpirun = processes(exec::Launcher::kOpenMpi);
  const auto torchrun = processes(exec::Launcher::kTorchrun);
  EXPECT_EQ(choose_transport("auto", DeviceKind::kHost, mpirun, 4, everything(0)), Transport::kMpi);
  EXPECT_EQ(choose_transport("auto", DeviceKind::kCuda, mpirun, 4, everything(4)),
            Transport::kNccl);
  EXPECT_EQ(choose_transport("auto", DeviceKind::kCuda, torchrun, 4, everything(4)),
            Transport::kNccl);
  exec::LaunchEnvironment crowded = torchrun;
  crowded.local_ranks = 4;
  EXPECT_THAT(
      refusal([&] { choose_transport("auto", DeviceKind::kCuda, crowded, 4, everything(2)); }).what,
      HasSubstr("4 processes on this machine, which has 2 GPUs, expected one process for each"));
  ExecutionOffer chosen = everything(1);
  chosen.gpus_are_chosen = true;  // each process sees its own
  EXPECT_EQ(choose_transport("auto", DeviceKind::kCuda, crowded, 4, chosen), Transport::kNccl);
  const Refusal no_way =
      refusal([&] { choose_transport("auto", DeviceKind::kHost, torchrun, 4, everything(0)); });
  EXPECT_EQ(no_way.code, ExitCode::kMissingDevice);
  EXPECT_THAT(no_way.what, HasSubstr("torchrun started 4 processes"));
  EXPECT_THAT(refusal([&] {
                choose_transport("local", DeviceKind::kCuda, torchrun, 4, everything(4));
              }).what,
              HasSubstr("expected auto or nccl"));
}

}  // namespace
}  // namespace shardwright::cli
