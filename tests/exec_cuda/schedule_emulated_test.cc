// SPDX-License-Identifier: Apache-2.0
// What is issued to CUDA in a step is the schedule, operation by operation: each behind the events
// it waits for, on its stream, followed by its event. Read from the log of the fake runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/exec/training.h"
#include "tests/exec_cuda/fixture.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using cuda_on_cpu::Call;
using cuda_on_cpu::CallKind;

struct Logged {
  std::vector<Call> setup;  // up to the step
  std::vector<Call> step;   // from the end of the upload to the wait at the end
};

bool enqueues(const Call& call) {
  return call.kind == CallKind::kKernel || call.kind == CallKind::kCopy ||
         call.kind == CallKind::kSet || call.kind == CallKind::kHostFunction;
}

/// The log has signatures; this is what stands before the arguments.
std::string function_of(const Call& call) {
  return call.name.substr(0, call.name.find('('));
}

/// The second step of one rank.
Logged log_step(const Training& training, const Schedule& schedule) {
  use_order(1);
  LocalWorld world(1, 1);
  Logged logged;
  world.run([&](int rank) {
    const auto device = naive_device();
    Executor executor(training.model, training.plan, schedule, *device, world.groups(rank, *device),
                      training.options);
    executor.initialize(3);
    executor.step(batch_of(training, 1, rank), step_options(training, 1));
    logged.setup = cuda_on_cpu::call_log();
    cuda_on_cpu::clear_log();
    executor.step(batch_of(training, 2, rank), step_options(training, 2));
    logged.step = cuda_on_cpu::call_log();
  });
  // The batch is uploaded and waited for, then comes the step, then the wait at its end.
  auto& step = logged.step;
  const auto waits = [](const Call& call) { return call.kind == CallKind::kSynchronize; };
  const auto upload_ends = std::find_if(step.begin(), step.end(), waits);
  const auto begin = std::find_if_not(upload_ends, step.end(), waits);
  step.erase(step.begin(), begin);
  const std::size_t streams = schedule.streams.size();
  EXPECT_TRUE(step.size() > streams &&
              std::all_of(step.end() - static_cast<int>(streams), step.end(), waits));
  step.erase(step.end() - static_cast<int>(streams), step.end());
  return logged;
}

/// What the calls of an operation are called, at least `least` and at most `most` of them.
struct Expected {
  std::vector<std::string> names;
  std::size_t least = 1, most = 1000;
};

Expected expected_calls(const Op& op) {
  const Expected product{{"cublasLtMatmul"}, 1, 1};
  const bool backward = op.phase == Phase::kBackward;
  switch (op.kind) {
    case OpKind::kEmbedding:
      return {{backward ? "embedding_backward" : "embedding_forward", "cudaMemsetAsync"}};
    case OpKind::kNorm:
      return {{backward ? "norm_backward" : "norm_forward", "sum_row_blocks"}};
    case OpKind::kQkNorm:
      return {{backward ? "norm_backward" : "norm_forward", "sum_row_blocks", "copy_rows"}};
    case OpKind::kQkvProjection:
    case OpKind::kOutputProjection:
    case OpKind::kGateUpProjection:
    case OpKind::kUpProjection:
    case OpKind::kDownProjection:
    case OpKind::kInputGradient:
    case OpKind::kWeightGradient:
      return product;
    case OpKind::kRope:
      return {{"rope"}, 1, 1};
    case OpKind::kAttention:
      return {{backward ? "run_backward" : "run_forward"}};
    case OpKind::kActivation:
      return {{backward ? "activation_backward" : "activation_forward"}, 1, 1};
    case OpKind::kAccumulate:
      if (op.of != OpKind::kHostWork) return {{"bias_gradient", "sum_row_blocks"}};
      return {{"accumulate", "cast"}, 0, 1};
    case OpKind::kCastShard:
      return {{"cast"}, 0};
    case OpKind::kCastGradient:
    case OpKind::kCopyIn:
      return {{"cast", "accumulate", "cudaMemcpyAsync"}, 0, 1};
    case OpKind::kAllGather:
      return {{"cudaMemcpyAsync"}, 0, 1};
    case OpKind::kReduceScatter:
    case OpKind::kAllReduce:
      return {{"fold", "cudaMemcpyAsync"}, 0, 2};
    case OpKind::kGradientNorm:
      return {{"sum_of_squares"}};
    case OpKind::kClip:
      return {{"step_totals"}, 1, 1};
    case OpKind::kOptimizer:
      return {{"adamw", "cast"}};
    default:
      return {{}, 0, 0};
  }
}

bool is_collective(const Op& op) {
  return op.kind == OpKind::kAllGather || op.kind == OpKind::kReduceScatter ||
         op.kind == OpKind::kAllReduce || op.kind == OpKind::kGradientNorm;
}

/// Goes through the log in the order of the schedule.
class Reader {
 public:
  Reader(const Schedule& schedule, const Logged& logged) : schedule_(schedule) {
    for (const Call& call : logged.setup) {
      if (call.name == "cudaStreamCreateWithPriority") created_.push_back(call);
    }
    for (const Call& call : logged.step) {
      if (enqueues(call) || call.kind == CallKind::kRecord || call.kind == CallKind::kWait) {
        calls_.push_back(call);
      }
    }
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
      if (op.record) recorded_.insert({op.record.name, at.unit + op.record.offset});
    });
  }

  void check_streams() {
    ASSERT_EQ(created_.size(), schedule_.streams.size());
    for (std::size_t i = 0; i < created_.size(); ++i) {
      EXPECT_EQ(created_[i].priority, std::clamp(schedule_.streams[i].priority, -5, 0));
    }
  }

  void check_operations() {
    for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
      if (::testing::Test::HasFailure() || op.kind == OpKind::kHostWork) return;
      SCOPED_TRACE(std::string(name_of(op.kind)) + ", operation " + std::to_string(at.id) +
                   " of unit " + std::to_string(at.unit) + ", call " + std::to_string(next_));
      for (const EventRef& ref : op.waits) expect_event(CallKind::kWait, op, ref, at.unit);
      if (op.kind == OpKind::kHeadProjection) {
        expect_head(op);
      } else if (at.unit != schedule_.head_unit() ||
                 (op.kind != OpKind::kLoss && op.of != OpKind::kHeadProjection)) {
        expect_work(op, expected_calls(op));
      }
      expect_event(CallKind::kRecord, op, op.record, at.unit);
    });
  }

  /// The numbers of the step go to the host, and that is all.
  void check_end() {
    ASSERT_EQ(next_ + 1, calls_.size());
    EXPECT_EQ(calls_[next_].name, "cudaMemcpyAsync");
    EXPECT_EQ(calls_[next_].bytes, sizeof(StepTotals));
  }

 private:
  int stream_of(const Op& op) const { return created_[op.stream].stream; }

  void expect_event(CallKind kind, const Op& op, const EventRef& ref, std::int32_t unit) {
    const std::pair<int, std::int32_t> event{ref.name, unit + ref.offset};
    if (!ref || !recorded_.contains(event)) return;
    ASSERT_LT(next_, calls_.size());
    const Call& call = calls_[next_++];
    ASSERT_EQ(call.kind, kind) << "found " << call.name;
    EXPECT_EQ(call.stream, stream_of(op));
    const auto known = events_.emplace(event, call.event).first;
    EXPECT_EQ(known->second, call.event) << schedule_.event_names[ref.name];
    const auto theirs = names_.emplace(call.event, event).first;
    EXPECT_EQ(theirs->second, event) << schedule_.event_names[ref.name];
  }

  /// Ranks that meet record two events of their own, before and after the work.
  void skip_bootstraps(const Op& op) {
    if (!is_collective(op)) return;
    while (next_ < calls_.size() && calls_[next_].kind == CallKind::kRecord &&
           calls_[next_].event <= communicator_events()) {
      EXPECT_EQ(calls_[next_].stream, stream_of(op));
      ++next_;
    }
  }
  // Each of the three groups of one rank has three, and one for its sender.
  static int communicator_events() { return 3 * 4; }

  void expect_work(const Op& op, const Expected& expected) {
    std::size_t count = 0;
    for (;; ++count) {
      skip_bootstraps(op);
      if (count == expected.most || next_ == calls_.size() || !enqueues(calls_[next_])) break;
      const Call& call = calls_[next_];
      const bool named =
          std::any_of(expected.names.begin(), expected.names.end(), [&](const std::string& name) {
            return function_of(call).find(name) != std::string::npos;
          });
      if (!named || call.stream != stream_of(op)) break;
      ++next_;
    }
    EXPECT_GE(count, expected.least)
        << "found " << (next_ < calls_.size() ? calls_[next_].name : "the end");
  }

  void expect_head(const Op& op) {
    const Expected product{{"cublasLtMatmul"}, 1, 1};
    do {
      expect_work(op, product);
      expect_work(op, {{"cross_entropy"}});
      expect_work(op, {{"cublasLtMatmul"}, 2, 2});
    } while (!::testing::Test::HasFailure() && calls_[next_].name == "cublasLtMatmul" &&
             function_of(calls_[next_ + 1]).find("cross_entropy") != std::string::npos);
  }

  const Schedule& schedule_;
  std::vector<Call> created_;  // streams
  std::vector<Call> calls_;
  std::size_t next_ = 0;
  std::set<std::pair<int, std::int32_t>> recorded_;
  std::map<std::pair<int, std::int32_t>, int> events_;
  std::map<int, std::pair<int, std::int32_t>> names_;
};

class CudaSchedule : public OnCuda<::testing::TestWithParam<Strategy>> {
 protected:
  static Training training() {
    Training t;
    t.model = tiny_llama();
    t.plan = tiny_plan(GetParam(), 1, 2);
    t.plan.seq_len = 8;
    t.plan.param_dtype = DType::kBf16;
    t.plan.ckpt_layers = 2;
    set_recompute(t.plan, "full");
    return t;
  }
  static Schedule schedule(const Training& t) {
    return sim::executed_step(t.model, t.plan, native_stack(), t.gpus_per_node).stages.front();
  }
};

TEST_P(CudaSchedule, IsWhatIsIssued) {
  const Training t = training();
  const Schedule s = schedule(t);
  const Logged logged = log_step(t, s);
  Reader reader(s, logged);
  reader.check_streams();
  reader.check_operations();
  if (!HasFailure()) reader.check_end();
}

TEST_P(CudaSchedule, AllocatesNothingAndNeverWaitsInAStep) {
  const Training t = training();
  std::vector<Call> calls = log_step(t, schedule(t)).step;
  // The step ends with its last kernel; then the host waits, because the schedule says so, and
  // fetches the loss.
  while (!calls.empty() && calls.back().kind != CallKind::kKernel) calls.pop_back();
  ASSERT_GT(calls.size(), 100u);
  for (const Call& call : calls) {
    EXPECT_TRUE(enqueues(call) || call.kind == CallKind::kRecord || call.kind == CallKind::kWait ||
                call.kind == CallKind::kQuery)
        << call.name;
    if (call.kind == CallKind::kKernel && call.name != "cublasLtMatmul") {
      const unsigned threads = call.block.x * call.block.y * call.block.z;
      EXPECT_TRUE(threads > 0 && threads <= 1024 && threads % 32 == 0)
          << call.name << " with blocks of " << threads << " threads";
      EXPECT_TRUE(call.grid.x > 0 && call.grid.y > 0 && call.grid.z > 0) << call.name;
      EXPECT_LE(call.bytes, 227u * 1024) << call.name;
    }
    if (call.kind == CallKind::kQuery) {
      EXPECT_EQ(call.name, "cudaPointerGetAttributes");
    } else {
      EXPECT_GT(call.stream, 0) << call.name << " on the default stream";
    }
  }
}

// The log tells two schedules apart: one wait less is one call less.
TEST_P(CudaSchedule, DiffersFromAnotherSchedule) {
  const Training t = training();
  Schedule damaged = schedule(t);
  int removed = 0;
  for (Op& op : damaged.ops) {
    for (EventRef& ref : op.waits) {
      if (ref && removed++ == 0) ref = {};
    }
  }
  if (removed == 0) GTEST_SKIP() << "no operation waits";
  const auto waits = [](const std::vector<Call>& calls) {
    return std::count_if(calls.begin(), calls.end(),
                         [](const Call& call) { return call.kind == CallKind::kWait; });
  };
  EXPECT_LT(waits(log_step(t, damaged).step), waits(log_step(t, schedule(t)).step));
}

INSTANTIATE_TEST_SUITE_P(All, CudaSchedule,
                         ::testing::Values(Strategy::kSingle, Strategy::kDdp, Strategy::kZero1,
                                           Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp1,
                                           Strategy::kFsdp2, Strategy::kYafsdp,
                                           Strategy::kYafsdpZero2),
                         parameter_name);

}  // namespace
}  // namespace shardwright::exec
