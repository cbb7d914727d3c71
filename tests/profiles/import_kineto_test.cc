// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiles/import/import_observations.h"
#include "sim/core/base/error.h"
#include "tests/profiles/kineto_text.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBf16x2 = R"(["c10::BFloat16", "c10::BFloat16"])";

class ImportKineto : public ::testing::Test {
 protected:
  ObservationSet import(const KinetoText& trace) {
    return import_observations({write_text(folder_.path() / "trace.json", trace.text())});
  }
  static const Observation& only(const ObservationSet& set, WorkKind kind) {
    const Observation* found = nullptr;
    for (const Observation& seen : not_empty(set.observations)) {
      if (seen.work.kind != kind) continue;
      EXPECT_EQ(found, nullptr) << "more than one";
      found = &seen;
    }
    EXPECT_NE(found, nullptr);
    static const Observation kEmpty;
    return found != nullptr ? *found : kEmpty;
  }
  static std::string notes(const ObservationSet& set) {
    std::string all;
    for (const std::string& note : set.notes) all += note + "\n";
    return all;
  }
  static std::int64_t left_out(const ObservationSet& set, std::string_view what) {
    for (const LeftOut& entry : set.left_out) {
      if (entry.what.find(what) != std::string::npos) return entry.count;
    }
    return 0;
  }

  testing::TempFolder folder_;
};

TEST_F(ImportKineto, TellsWhatTheMachineIs) {
  KinetoText trace(3, 16);
  trace.open("aten::mm", "cpu_op", shapes("[[64, 32], [32, 16]]", kBf16x2)).kernel("sm90_gemm", 5);
  trace.close();
  const ObservationSet set = import(trace);
  ASSERT_EQ(set.sources.size(), 1U);
  EXPECT_EQ(set.sources[0].format, "kineto");
  EXPECT_EQ(set.sources[0].gpu, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(set.sources[0].sm_count, 132);
  EXPECT_EQ(set.sources[0].rank, 3);
  EXPECT_EQ(set.sources[0].world_size, 16);
  EXPECT_EQ(set.sources[0].software, "NCCL 2.21.5");
}

TEST_F(ImportKineto, AProductIsOneObservationThoughItRanTwoKernels) {
  KinetoText trace;
  trace.open("aten::linear", "cpu_op", shapes("[[2, 32, 64], [128, 64], []]", kBf16x2));
  trace.open("aten::addmm", "cpu_op",
             shapes("[[128], [64, 64], [64, 128]]",
                    R"(["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"])"));
  trace.kernel("sm90_xmma_gemm_bf16", 10).kernel("splitKreduce_kernel", 2.5);
  trace.close().close();
  const Observation seen = only(import(trace), WorkKind::kGemm);
  EXPECT_EQ(seen.work.m, 64);
  EXPECT_EQ(seen.work.n, 128);
  EXPECT_EQ(seen.work.k, 64);
  EXPECT_EQ(seen.work.dtype_bytes, 2);
  EXPECT_EQ(seen.work.kernels, 1);
  EXPECT_EQ(seen.phase, Phase::kForward);
  EXPECT_NEAR(seen.seconds, 12.5e-6, 1e-12);
}

TEST_F(ImportKineto, BatchedProductsCarryTheirBatch) {
  KinetoText trace;
  trace.open("aten::bmm", "cpu_op", shapes("[[8, 64, 32], [8, 32, 16]]", kBf16x2));
  trace.kernel("cutlass_gemm", 10).close();
  const Observation seen = only(import(trace), WorkKind::kGemm);
  EXPECT_EQ(seen.batch, 8);
  EXPECT_EQ(seen.work.m, 64);
}

TEST_F(ImportKineto, GradientsAreToldFromForwardAndRecompute) {
  KinetoText trace;
  trace.open("aten::mm", "cpu_op", shapes("[[4096, 512], [512, 1024]]", kBf16x2));
  trace.kernel("gemm", 10).close();
  trace.on_thread(8).open("autograd::engine::evaluate_function: MmBackward0").open("MmBackward0");
  trace.open("aten::mm", "cpu_op", shapes("[[1024, 4096], [4096, 512]]", kBf16x2));
  trace.kernel("gemm", 11).close();
  trace.open("aten::mm", "cpu_op", shapes("[[4096, 1024], [1024, 512]]", kBf16x2));
  trace.kernel("gemm", 12).close();
  trace.open("aten::linear");  // a checkpoint unpacks: the forward runs again
  trace.open("aten::mm", "cpu_op", shapes("[[4096, 512], [512, 1024]]", kBf16x2));
  trace.kernel("gemm", 10).close().close().close().close();
  const ObservationSet set = import(trace);
  std::vector<std::pair<Phase, OpKind>> seen;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind == WorkKind::kGemm) seen.emplace_back(o.phase, o.op);
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(std::pair(Phase::kForward, OpKind::kHostWork),
                                           std::pair(Phase::kBackward, OpKind::kWeightGradient),
                                           std::pair(Phase::kBackward, OpKind::kInputGradient),
                                           std::pair(Phase::kRecompute, OpKind::kHostWork)));
}

TEST_F(ImportKineto, AttentionHasItsShapeAndDirection) {
  KinetoText trace;
  const char* qkv = R"(["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"])";
  trace.open("aten::_scaled_dot_product_flash_attention", "cpu_op",
             shapes("[[2, 32, 4096, 128], [2, 8, 4096, 128], [2, 8, 4096, 128]]", qkv));
  trace.kernel("pytorch_flash::flash_fwd_kernel<>", 100).close();
  trace.on_thread(8).open("autograd::engine::evaluate_function: X");
  trace.open("aten::_flash_attention_backward", "cpu_op",
             shapes("[[2, 4096, 32, 128], [2, 4096, 32, 128], [2, 4096, 8, 128]]", qkv));
  trace.kernel("flash_bwd_dot_do_o", 5).kernel("flash_bwd_dq_dk_dv", 200).kernel("flash_bwd_dq", 5);
  trace.close().close();
  const ObservationSet set = import(trace);
  std::vector<Observation> seen;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind == WorkKind::kAttention) seen.push_back(o);
  }
  ASSERT_EQ(seen.size(), 2U);
  for (const Observation& o : seen) {
    EXPECT_EQ(o.work.m, 64);
    EXPECT_EQ(o.work.n, 4096);
    EXPECT_EQ(o.work.k, 128);
  }
  EXPECT_FALSE(seen[0].work.backward);
  EXPECT_TRUE(seen[1].work.backward);
  EXPECT_EQ(seen[1].work.kernels, 3);
  EXPECT_NEAR(seen[1].seconds, 210e-6, 1e-12);
}

TEST_F(ImportKineto, MemoryBoundOperatorsCountTheirBytes) {
  struct Case {
    const char* op;
    const char* dims;
    const char* types;
    std::int64_t bytes;
    MemoryClass memory_class;
  };
  const Case cases[] = {
      {"aten::copy_", "[[100, 10], [100, 10], []]", R"(["float", "c10::BFloat16", "Scalar"])",
       1000 * 6, MemoryClass::kCast},
      {"aten::copy_", "[[100, 10], [100, 10], []]", R"(["float", "float", "Scalar"])", 1000 * 8,
       MemoryClass::kCopy},
      {"aten::add", "[[100, 10], [10], []]", R"(["float", "float", "Scalar"])", 4000 + 40 + 4000,
       MemoryClass::kAdd},
      {"aten::mul", "[[100, 10], []]", R"(["c10::BFloat16", "Scalar"])", 4000, MemoryClass::kScale},
      {"aten::cat", "[[[100], [300]], []]", R"([["float", "float"], "Scalar"])", 2 * 1600,
       MemoryClass::kConcatenate},
      {"aten::_fused_adamw_", "[[[10], [20]], [[10], [20]], [[10], [20]], [[10], [20]]]",
       R"([["float", "float"], ["float", "float"], ["float", "float"], ["float", "float"]])",
       30 * 28, MemoryClass::kStream},
  };
  for (const Case& c : cases) {
    KinetoText trace;
    trace.open(c.op, "cpu_op", shapes(c.dims, c.types)).kernel("elementwise_kernel", 3).close();
    const Observation seen = only(import(trace), WorkKind::kMemory);
    EXPECT_EQ(seen.work.bytes, c.bytes) << c.op << " " << c.types;
    EXPECT_EQ(seen.work.memory_class, c.memory_class) << c.op << " " << c.types;
  }
}

std::string comm(std::string_view name, std::int64_t in, std::int64_t out, int group,
                 std::string_view ranks) {
  return fmt::format(
      R"("Collective name": "{}", "In msg nelems": {}, "Out msg nelems": "{}", "Group size": {}, "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "{}")",
      name, in, out, group, ranks);
}

TEST_F(ImportKineto, CollectivesHaveBytesRanksAndNodesButNoProtocol) {
  KinetoText trace(0, 16, 8);
  trace.open("record_param_comms")
      .kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", 90, 20,
              comm("_allgather_base", 1000, 16000, 16,
                   "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]"));
  trace.close();
  const Observation seen = only(import(trace), WorkKind::kCollective);
  EXPECT_EQ(seen.op, OpKind::kAllGather);
  EXPECT_EQ(seen.work.bytes, 32000);
  EXPECT_EQ(seen.ranks, 16);
  EXPECT_EQ(seen.nodes, 2);
  EXPECT_EQ(seen.instance, 0);
}

TEST_F(ImportKineto, RanksShareTheNumbersOfCollectives) {
  std::vector<std::filesystem::path> files;
  for (int rank = 0; rank < 2; ++rank) {
    KinetoText trace(rank, 2);
    trace.open("ProfilerStep#4", "user_annotation");
    for (int i = 0; i < 3; ++i) {
      trace.open("record_param_comms")
          .kernel("ncclDevKernel_ReduceScatter", 50 + 10 * rank, 20,
                  comm("_reduce_scatter_base", i < 2 ? 2000 : 4000, 1000, 2, "[0, 1]"));
      trace.close();
    }
    trace.close();
    files.push_back(write_text(folder_.path() / fmt::format("rank{}.json", rank), trace.text()));
  }
  const ObservationSet set = import_observations(files);
  std::map<std::int64_t, std::vector<double>> by_instance;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind == WorkKind::kCollective) by_instance[o.instance].push_back(o.seconds);
  }
  ASSERT_EQ(by_instance.size(), 3U);
  for (const auto& [instance, times] : by_instance) EXPECT_EQ(times.size(), 2U) << instance;
  EXPECT_EQ(notes(set), "");  // both ranks are there
}

TEST_F(ImportKineto, ContentionIsTheShareUnderACollective) {
  KinetoText trace;
  trace.open("record_param_comms")
      .kernel("ncclDevKernel_AllReduce", 40, 20,
              comm("allreduce", 1000, 1000, 8, "[0, 1, 2, 3, 4, 5, 6, 7]"), 2000);
  trace.close();
  trace.open("aten::mm", "cpu_op", shapes("[[64, 32], [32, 16]]", kBf16x2));
  trace.kernel("gemm", 80, 7, "", 2000).close();
  const ObservationSet set = import(trace);
  EXPECT_NEAR(only(set, WorkKind::kGemm).contended, 0.5, 1e-9);
  EXPECT_NEAR(only(set, WorkKind::kCollective).contended, 1.0, 1e-9);
}

TEST_F(ImportKineto, StepsAndUnitsAreNamed) {
  KinetoText trace;
  trace.open("ProfilerStep#7", "user_annotation");
  trace.open("FSDP::all_gather (layers.3)", "user_annotation").open("record_param_comms");
  trace.kernel("ncclDevKernel_AllGather", 30, 20, comm("_allgather_base", 1, 8, 8, "[]"));
  trace.close().close().wait(500).close();
  const ObservationSet set = import(trace);
  const Observation& seen = only(set, WorkKind::kCollective);
  EXPECT_EQ(seen.step, 7);
  ASSERT_EQ(seen.unit, 0);
  EXPECT_EQ(set.units[0], "layers.3");
  ASSERT_EQ(set.sources[0].step_s.size(), 1U);
  EXPECT_NEAR(set.sources[0].step_s[0], 511e-6, 2e-6);
}

TEST_F(ImportKineto, LaunchesCostWhatLiesBetweenThem) {
  KinetoText trace;
  for (int i = 0; i < 20; ++i) {
    trace.open("aten::silu", "cpu_op", shapes("[[64]]", R"(["float"])")).kernel("e", 1).close();
    trace.wait(3);
  }
  // 1 us into the operator, 4 at the launch, 1 at its end, 3 of Python.
  EXPECT_NEAR(only(import(trace), WorkKind::kHost).seconds, 9e-6, 1e-9);
}

TEST_F(ImportKineto, UnknownOperatorsAndKernelsAreListedWithTheirTime) {
  KinetoText trace;
  trace.open("my::secret_op", "cpu_op", shapes("[[64]]", R"(["float"])")).kernel("k", 100).close();
  trace.kernel("void (anonymous namespace)::lonely<int>(int)", 50);
  const ObservationSet set = import(trace);
  EXPECT_EQ(left_out(set, "my::secret_op"), 1);
  EXPECT_EQ(left_out(set, "kernels without an operator (other): lonely"), 1);
  double total = 0;
  for (const LeftOut& entry : set.left_out) total += entry.seconds;
  EXPECT_NEAR(total, set.kernel_seconds, 1e-12);
}

TEST_F(ImportKineto, KeepsABoundedNumberOfOperations) {
  KinetoText trace;
  for (int i = 0; i < 30; ++i) {
    trace.open("aten::mm", "cpu_op", shapes("[[64, 32], [32, 16]]", kBf16x2))
        .kernel("gemm", 5)
        .close();
  }
  ImportOptions options;
  options.max_operations = 10;
  const ObservationSet set =
      import_observations({write_text(folder_.path() / "trace.json", trace.text())}, options);
  EXPECT_EQ(left_out(set, "beyond the first 10"), 20);
  EXPECT_NEAR(set.kernel_seconds, 150e-6, 1e-12);
}

TEST_F(ImportKineto, ToleratesStringsForNumbersStrayCategoriesAndNegativeDurations) {
  KinetoText trace;
  trace.raw_event(
      R"("ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": "7", "tid": "7", "ts": "10.5", "dur": "30", "args": {"Input Dims": [["64", "32"], ["32", "16"]], "Input type": ["float", "float"]})");
  trace.raw_event(
      R"("ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": 12, "dur": 2, "args": {"correlation": "5"})");
  trace.raw_event(
      R"("ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 2e1, "dur": "7.25", "args": {"device": "0", "stream": "7", "correlation": "5"})");
  trace.raw_event(R"("ph": "X", "cat": "kernel", "name": "gemm", "ts": 20, "dur": -7, "args": {})");
  trace.raw_event(R"("ph": "X", "cat": "no_such_thing", "name": "x", "ts": {}, "dur": []  )");
  const ObservationSet set = import(trace);
  EXPECT_NEAR(only(set, WorkKind::kGemm).seconds, 7.25e-6, 1e-12);
  EXPECT_EQ(left_out(set, "negative duration"), 1);
}

TEST_F(ImportKineto, CorrelationsThatRepeatMeanTheLaunchBeforeTheKernel) {
  KinetoText trace;
  const char* const kLaunch =
      R"("ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {0}, "tid": {0}, "ts": {1}, "dur": 2, "args": {{"correlation": 5}})";
  const char* const kOp =
      R"("ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": {0}, "tid": {0}, "ts": {1}, "dur": 9, "args": {{"Input Dims": [[{2}, 32], [32, 16]], "Input type": ["float", "float"]}})";
  const char* const kKernel =
      R"("ph": "X", "cat": "kernel", "name": "gemm", "pid": {0}, "tid": 7, "ts": {1}, "dur": 4, "args": {{"device": {0}, "stream": 7, "correlation": 5}})";
  for (const int device : {0, 1}) {
    trace.raw_event(
        fmt::format(fmt::runtime(kOp), device, 100 + 50 * device, device == 0 ? 64 : 128));
    trace.raw_event(fmt::format(fmt::runtime(kLaunch), device, 102 + 50 * device));
    trace.raw_event(fmt::format(fmt::runtime(kKernel), device, 110 + 50 * device));
  }
  const ObservationSet set = import(trace);
  std::vector<std::int64_t> rows;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind == WorkKind::kGemm) rows.push_back(o.work.m);
  }
  EXPECT_THAT(rows, ::testing::UnorderedElementsAre(64, 128));
  EXPECT_THAT(notes(set), HasSubstr("share their correlation id"));
}

TEST_F(ImportKineto, ATruncatedTailGivesWhatStandsBefore) {
  KinetoText trace;
  for (int i = 0; i < 50; ++i) {
    trace.open("aten::mm", "cpu_op", shapes("[[64, 32], [32, 16]]", kBf16x2))
        .kernel("gemm", 5)
        .close();
  }
  const std::string text = trace.text();
  const auto half = std::string_view(text).substr(0, text.size() / 2);
  for (const auto& file : {write_text(folder_.path() / "half.json", half),
                           write_gzip(folder_.path() / "half.json.gz", half)}) {
    const ObservationSet set = import_observations({file});
    EXPECT_TRUE(set.sources[0].truncated);
    EXPECT_THAT(notes(set), HasSubstr("ends in the middle"));
    EXPECT_GT(set.observations.size(), 15U);
    EXPECT_LT(set.observations.size(), 35U);
  }
  // A compressed file that was cut itself.
  write_gzip(folder_.path() / "whole.json.gz", text);
  std::filesystem::resize_file(folder_.path() / "whole.json.gz",
                               std::filesystem::file_size(folder_.path() / "whole.json.gz") - 40);
  const ObservationSet set = import_observations({folder_.path() / "whole.json.gz"});
  EXPECT_TRUE(set.sources[0].truncated);
  EXPECT_THAT(notes(set), HasSubstr("damaged or ends early"));
}

TEST_F(ImportKineto, WhatIsNoTraceIsRefusedInOneSentence) {
  const auto refusal = [&](std::string_view text) {
    return testing::refusal_of(
        [&] { import_observations({write_text(folder_.path() / "x", text)}); });
  };
  EXPECT_THAT(refusal(""), HasSubstr("unknown format"));
  EXPECT_THAT(refusal("hello"), HasSubstr("unknown format"));
  EXPECT_THAT(refusal("{}"), HasSubstr("unknown format"));
  EXPECT_THAT(refusal(R"({"traceEvents": []})"), HasSubstr("holds no trace event"));
  EXPECT_THAT(refusal(R"({"traceEvents" [1]})"), HasSubstr("is no trace"));
  EXPECT_THROW(import_observations({folder_.path()}), Error);
  EXPECT_THROW(import_observations({folder_.path() / "absent"}), Error);
}

// Real recordings (tests/data/traces/README.md).
TEST(ImportRealTraces, DdpOnTwoRanks) {
  const ObservationSet set = import_observations(
      {std::filesystem::path(SHARDWRIGHT_TEST_DATA) / "traces/torch_ddp_rank0.json.gz"});
  EXPECT_EQ(set.sources[0].gpu, "NVIDIA A100-PG509-200");
  EXPECT_EQ(set.sources[0].world_size, 2);
  EXPECT_EQ(set.sources[0].date, "2024-05-23");
  std::int64_t reduced = 0, reductions = 0;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.op != OpKind::kAllReduce) continue;
    ++reductions;
    reduced += o.work.bytes;
    EXPECT_EQ(o.ranks, 2);
    EXPECT_EQ(o.nodes, 1);
    EXPECT_EQ(o.phase, Phase::kBackward);
    EXPECT_EQ(o.step, 5);
  }
  EXPECT_EQ(reductions, 5);
  EXPECT_EQ(reduced, 102228128);  // ResNet-50's 25,557,032 parameters in fp32
  double left = 0;
  for (const LeftOut& entry : set.left_out) left += entry.seconds;
  EXPECT_GT(left, 0.7 * set.kernel_seconds);  // convolutions: not what is modelled here
}

TEST(ImportRealTraces, AnOlderPyTorchOn128Ranks) {
  const ObservationSet set = import_observations(
      {std::filesystem::path(SHARDWRIGHT_TEST_DATA) / "traces/torch_recsys_rank0.json.gz"});
  double products = 0, flops = 0;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind != WorkKind::kGemm) continue;
    products += o.seconds;
    flops += 2.0 * static_cast<double>(o.work.m * o.batch) * static_cast<double>(o.work.n) *
             static_cast<double>(o.work.k);
    EXPECT_EQ(o.work.dtype_bytes, 4);
  }
  // An A100 multiplies fp32 at 19.5 TFLOP/s, in TF32 at 156.
  EXPECT_GT(flops / products, 5e12);
  EXPECT_LT(flops / products, 156e12);
  EXPECT_THAT(set.notes, ::testing::Contains(HasSubstr("1 of 128 ranks")));
}

}  // namespace
}  // namespace shardwright::profiles
