// SPDX-License-Identifier: Apache-2.0
// One rank of the MPI tests, started by mpirun; all ranks run the same tests at the same time. It
// goes through the contract of communicators, trains with every strategy and compares what it owns
// with one rank that accumulates, computed in the same process. With a word as argument it fails on
// rank 1 in the way that the word names, on streams of the mode that a second one names.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

#include "exec/comm/mpi_world.h"
#include "exec/recorder.h"
#include "sim/core/base/error.h"
#include "sim/pipeline/step_program.h"
#include "tests/exec/communicator_contract.h"
#include "tests/exec/training.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

/// MPI starts once in a process. main() ends it.
MpiWorld* the_world = nullptr;

CommunicatorCase mpi(StreamMode mode) {
  const auto run = [mode](int shard_ranks, const RankBody& body) {
    kernels::host::Parallel parallel(1);
    HostDevice device(parallel, mode, static_cast<std::uint64_t>(the_world->rank()));
    const StreamId stream = device.make_stream("communication", 0);
    RankGroups groups =
        the_world->groups(data_parallel_mesh(the_world->ranks(), shard_ranks), device);
    body(the_world->rank(), device, groups, stream);
    device.synchronize();
  };
  return {std::string(name_of(mode)), the_world->ranks(), run};
}

// Cases are asked for when main() has started MPI.
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorContract,
                         ::testing::ValuesIn(std::vector{mpi(StreamMode::kInline),
                                                         mpi(StreamMode::kThreads)}),
                         parameter_name);

struct Trained {
  Strategy strategy;
  std::int64_t shard_group = 0;
  StreamMode mode = StreamMode::kInline;
  std::int64_t tp = 1, pp = 1;
};

/// The executor of this rank.
struct Rank {
  Rank(const Training& training, const ExecutorOptions& options = {})
      : stages(sim::executed_step(training.model, training.plan, native_stack(), 2).stages),
        mesh(training.plan, stages.front().shard_ranks()),
        device(parallel, training.mode, static_cast<std::uint64_t>(the_world->rank())),
        executor(training.model, training.plan,
                 stages[static_cast<std::size_t>(mesh.place_of(the_world->rank()).pp)], device,
                 the_world->groups(mesh, device), options) {
    executor.initialize(3);
  }
  std::vector<Schedule> stages;
  RankMesh mesh;
  kernels::host::Parallel parallel{1};
  HostDevice device;
  Executor executor;
};

/// Losses, norms and the weights that this rank owns must be those of one accumulating rank.
void expect_equal_to_one_rank(const Trained& with) {
  MpiWorld& world = *the_world;
  Training training;
  training.steps = 2;
  training.mode = with.mode;
  training.plan = tiny_plan(with.strategy, world.ranks());
  training.plan.shard_group = with.shard_group;
  training.plan.parallel.tp = with.tp;
  training.plan.parallel.pp = with.pp;
  if (with.tp > 1) training.model = divisible(training.model);
  if (with.pp > 1) {
    training.plan.grad_accum = 4;
    training.plan.parallel.pp_schedule = PipelineKind::kZb1p;
    training.model.layers = 6;
    training.model.tied_head = with.mode == StreamMode::kThreads;
  }
  Training alone = training;
  alone.plan = tiny_plan(Strategy::kSingle, 1,
                         training.plan.grad_accum * world.ranks() / (with.tp * with.pp));
  alone.plan.sum_features = with.tp;
  alone.plan.sum_uses = training.plan.use_parts();
  const auto expected = train(alone);

  Rank rank(training);
  Executor& executor = rank.executor;
  for (int step = 1; step <= training.steps; ++step) {
    const StepResult result =
        executor.step(batch_of(training, step, world.rank()), step_options(training, step));
    const TrainedStep& want = expected[static_cast<std::size_t>(step) - 1];
    EXPECT_EQ(result.loss_sum, want.result.loss_sum);
    EXPECT_EQ(result.gradient_norm, want.result.gradient_norm);
    for (const OwnedState& state : executor.owned_state()) {
      const ParameterTensor& tensor = executor.layout().tensor(state.tensor);
      const std::vector<float>& whole = want.weights.at(tensor.name);
      const std::vector<float> mine = executor.read(state.parameter);
      for (std::int64_t row = 0; row < state.rows; ++row) {
        const auto begin = mine.begin() + row * state.cols;
        EXPECT_TRUE(std::equal(begin, begin + state.cols,
                               whole.begin() + state.tensor_offset + row * tensor.row_length()))
            << tensor.name;
      }
    }
  }
}

TEST(MpiTraining, RanksEqualOne) {
  std::vector<Trained> all{
      {.strategy = Strategy::kYafsdp, .mode = StreamMode::kThreads},
      {Strategy::kHsdp, the_world->ranks() % 2 == 0 ? 2 : 1, StreamMode::kThreads}};
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFsdp2,
        Strategy::kFsdp2NoReshard, Strategy::kYafsdp, Strategy::kYafsdpZero2}) {
    all.push_back({.strategy = strategy});
  }
  for (const std::int64_t tp : {2, 4}) {
    if (the_world->ranks() % tp != 0) continue;
    all.push_back({.strategy = Strategy::kYafsdp, .mode = StreamMode::kThreads, .tp = tp});
    all.push_back({.strategy = Strategy::kZero1, .tp = tp});
  }
  // All ranks but those of tensors are stages.
  for (const std::int64_t tp : {1, 2}) {
    const std::int64_t pp = the_world->ranks() / tp;
    if (the_world->ranks() % tp != 0 || pp < 2) continue;
    for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads})
      all.push_back({.strategy = Strategy::kFsdp2, .mode = mode, .tp = tp, .pp = pp});
  }
  for (const Trained& with : all) {
    SCOPED_TRACE(fmt::format("{}, {}, tp {}, pp {}", name_of(with.strategy), name_of(with.mode),
                             with.tp, with.pp));
    expect_equal_to_one_rank(with);
  }
}

/// Fails in the way that the word names where the rank has come so far.
class FailingMarker final : public RangeMarker {
 public:
  FailingMarker(int operations, std::string_view how) : left_(operations), how_(how) {}
  void begin(const std::string&) override {
    if (--left_ != 0) return;
    if (how_ == "throw") throw Error("the disk of this rank is full", ExitCode::kFailed);
    if (how_ == "exit") std::_Exit(7);
    std::raise(how_ == "kill" ? SIGKILL : SIGSTOP);
  }
  void end() override {}

 private:
  int left_;
  std::string_view how_;
};

/// In a pipeline of two tensor ranks x two stages.
void fail_on_rank_one(std::string_view how, StreamMode mode) {
  Training training;
  training.mode = mode;
  training.model = divisible(training.model);
  training.plan = tiny_plan(Strategy::kYafsdp, the_world->ranks(), 4);
  training.plan.parallel.tp = training.plan.parallel.pp = 2;
  FailingMarker marker(the_world->rank() == 1 ? 400 : -1, how);
  ExecutorOptions options;
  options.ranges = &marker;
  Rank rank(training, options);
  for (int step = 1; step <= 1000; ++step) {
    rank.executor.step(batch_of(training, step, the_world->rank()), step_options(training, step));
  }
}

}  // namespace
}  // namespace shardwright::exec

int main(int argc, char** argv) {
  using namespace shardwright::exec;
  // A busy machine makes ranks slow: only the one that waits for a rank in vain is impatient.
  constexpr double kImpatience = 5, kPatience = 1800;  // seconds
  MpiWorld world(true, argc > 1 && std::string_view(argv[1]) == "stop" ? kImpatience : kPatience);
  the_world = &world;
  GTEST_FLAG_SET(brief, true);              // ranks print on one screen
  GTEST_FLAG_SET(catch_exceptions, false);  // what one rank throws ends the job
  ::testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  world.run([&] {
    if (argc > 1) return fail_on_rank_one(argv[1], stream_mode_from(argc > 2 ? argv[2] : "inline"));
    failed = RUN_ALL_TESTS();
  });
  return failed;
}
