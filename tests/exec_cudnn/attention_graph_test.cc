// SPDX-License-Identifier: Apache-2.0
// cuDNN's own judgement of our graphs on a machine without a GPU: a device described in JSON, and
// the toolkit's stub of the driver. Engines are picked and kernels compiled; only their loading
// fails, as it must.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "exec/cudnn/attention.h"
#include "sim/core/base/error.h"
#include "sim/core/workspace.h"

namespace shardwright::exec::cudnn {
namespace {

using kernels::AttentionShape;
using kernels::cuda::AttentionProblem;
using ::testing::StartsWith;

AttentionProblem problem_of(AttentionShape shape) {
  return {.shape = shape,
          .packed_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
          .out_stride = shape.heads * shape.head_dim};
}

const AttentionShape kLlama8b = {
    .batch = 1, .seq = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128};
const AttentionShape kShapes[] = {
    kLlama8b,
    {.batch = 2, .seq = 4096, .heads = 32, .kv_heads = 8, .head_dim = 64},
    {.batch = 1, .seq = 1000, .heads = 32, .kv_heads = 8, .head_dim = 128},
    {.batch = 3, .seq = 1000, .heads = 4, .kv_heads = 4, .head_dim = 64}};

/// Compiling takes most of a second, so only two of the shapes are compiled.
bool is_compiled(const AttentionShape& shape) {
  return &shape == std::begin(kShapes) || &shape == std::end(kShapes) - 1;
}

/// The device that tests/data/cudnn describes.
Gpu described(const std::string& name) {
  std::ifstream file(SHARDWRIGHT_TEST_DATA "/cudnn/" + name + ".json");
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(json.empty()) << name;
  const int version = nlohmann::json::parse(json).at("deviceVer").get<int>();
  return {.json = json, .compute_capability = version / 10};
}

AttentionGraph whole_graph(const AttentionProblem& problem, QueryGradient form, const Gpu& gpu) {
  return backward_graph(problem, {.batch = problem.shape.batch, .kv_heads = problem.shape.kv_heads},
                        form, gpu);
}

AttentionGraph forward_graph(const AttentionProblem& problem, const Gpu& gpu) {
  return {problem, row_strides(problem), gpu};
}

/// Why there is no slice.
std::string refused(const AttentionProblem& problem, QueryGradient form, const Gpu& gpu) {
  try {
    backward_slice(problem, form, gpu);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// A driver's answer when it is the stub that is linked against, CUDA_ERROR_STUB_LIBRARY.
constexpr int kStubAnswer = 34;

class CudnnGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) GTEST_SKIP() << "no libcuda.so.1, not even the toolkit's stub";
    using Init = int (*)(unsigned);
    const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
    if (init == nullptr || init(0) != kStubAnswer) {
      GTEST_SKIP() << "libcuda.so.1 is a driver, not the toolkit's stub";
    }
    gpu_ = described("h200");
  }

  /// A plan of the graph compiles but cannot be loaded.
  static void expect_only_loading_fails(AttentionGraph graph) {
    try {
      graph.compile();
      FAIL() << "a stub loaded a kernel";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cuLibraryLoadData"), std::string::npos)
          << error.what();
    }
  }

  Gpu gpu_;
};

TEST_F(CudnnGraphs, ForwardIsTakenAndCompiles) {
  for (const AttentionShape& shape : kShapes) {
    AttentionGraph graph = forward_graph(problem_of(shape), gpu_);
    if (is_compiled(shape)) expect_only_loading_fails(std::move(graph));
  }
}

TEST_F(CudnnGraphs, BackwardIsTakenAndCompiles) {
  for (const AttentionShape& shape : kShapes) {
    for (const QueryGradient form : {QueryGradient::kOrdered, QueryGradient::kAccumulated}) {
      AttentionGraph graph = whole_graph(problem_of(shape), form, gpu_);
      if (is_compiled(shape)) expect_only_loading_fails(std::move(graph));
    }
  }
}

TEST_F(CudnnGraphs, WorkspacesAreThoseOfTheFusedEngines) {
  // An engine that does not recognise the graph writes further T x T matrices to memory.
  const auto need = [&](const AttentionShape& shape, QueryGradient form) {
    return static_cast<double>(whole_graph(problem_of(shape), form, gpu_).workspace_bytes());
  };
  const AttentionShape& s = kLlama8b;
  const Bytes matrix = 2 * s.heads * s.seq * s.seq;
  const Bytes rows = 4 * s.heads * s.tokens();  // sums over D of out times its gradient
  const Bytes every_head = 2 * 2 * s.tokens() * s.heads * s.head_dim;  // dK and dV before the sum
  const Bytes sums = rows * s.head_dim;                                // of dQ, in fp32
  EXPECT_NEAR(need(s, QueryGradient::kAccumulated), static_cast<double>(every_head + rows + sums),
              4096.0);
  EXPECT_NEAR(need(s, QueryGradient::kOrdered), static_cast<double>(matrix + every_head + rows),
              4096.0);
}

TEST_F(CudnnGraphs, TheWorkspaceIsBoundedBySlices) {
  AttentionProblem problem = problem_of(kLlama8b);
  const auto heads_within = [&](Bytes limit, QueryGradient form) {
    problem.most_workspace_bytes = limit;
    const BackwardSlice slice = backward_slice(problem, form, gpu_);
    EXPECT_LE(slice.bytes(), limit);
    return slice.kv_heads;
  };
  EXPECT_EQ(heads_within(Bytes{1} << 40, QueryGradient::kOrdered), 8);
  EXPECT_EQ(heads_within(Bytes{1} << 30, QueryGradient::kOrdered), 4);
  expect_only_loading_fails(
      backward_graph(problem, {.batch = 1, .kv_heads = 4}, QueryGradient::kOrdered, gpu_));
  problem.most_workspace_bytes = 1 << 20;
  EXPECT_EQ(refused(problem, QueryGradient::kOrdered, gpu_),
            "has no engine on this GPU for heads of 128 whose workspace for 4096 tokens is at most "
            "1 MiB");
  // dK and dV for every query head and the fp32 sums of dQ, of half of the heads.
  EXPECT_EQ(heads_within(Bytes{70} << 20, QueryGradient::kAccumulated), 4);
}

TEST_F(CudnnGraphs, PlansHaveTheRoom) {
  for (AttentionShape shape : kShapes) {
    for (const std::int64_t seq : {512, 2048, 8192}) {
      shape.seq = seq;
      AttentionProblem problem = problem_of(shape);
      problem.most_workspace_bytes = attention_workspace_bytes(
          shape.batch, seq, shape.heads, shape.kv_heads, shape.head_dim, DType::kBf16);
      EXPECT_EQ(refused(problem, QueryGradient::kAccumulated, gpu_), "")
          << shape.heads << " heads, " << seq << " tokens";
      problem.most_workspace_bytes = attention_workspace_bytes(
          shape.batch, seq, shape.heads, shape.kv_heads, shape.head_dim, DType::kBf16, true);
      EXPECT_EQ(refused(problem, QueryGradient::kOrdered, gpu_), "")
          << shape.heads << " heads, " << seq << " tokens";
    }
  }
}

/// Engines by cuDNN's count: 7 is built on mma.sync, 6 on Hopper's wgmma, 5 on Blackwell's tcgen05.
struct KnownGpu {
  const char* name;
  std::int64_t multiprocessors;
  const char* engine;  // of both backward passes
};
constexpr KnownGpu kGpus[] = {{"a100", 108, "eng7_"}, {"h100", 132, "eng6_"},
                              {"h200", 132, "eng6_"}, {"b200", 148, "eng5_"},
                              {"l40s", 142, "eng7_"}, {"rtx5090", 170, "eng7_"}};

struct KnownModel {
  const char* name;
  std::int64_t heads, kv_heads;
};
constexpr KnownModel kModels[] = {
    {"llama-3-8b", 32, 8}, {"llama-3-70b", 64, 8}, {"llama-3-405b", 128, 8}};

/// Calls check(problem, device) for all of them, with the workspace that a plan has.
template <class Check>
void for_each_problem(bool ordered, Check&& check) {
  for (const KnownGpu& gpu : kGpus) {
    const Gpu device = described(gpu.name);
    for (const KnownModel& model : kModels) {
      for (const std::int64_t seq : {2048, 4096, 8192, 16384, 32768}) {
        SCOPED_TRACE(std::string(gpu.name) + ", " + model.name + ", " + std::to_string(seq));
        AttentionProblem problem = problem_of({.batch = seq < 8192 ? 2 : 1,
                                               .seq = seq,
                                               .heads = model.heads,
                                               .kv_heads = model.kv_heads,
                                               .head_dim = 128});
        const AttentionShape& s = problem.shape;
        problem.most_workspace_bytes = attention_workspace_bytes(s.batch, seq, s.heads, s.kv_heads,
                                                                 s.head_dim, DType::kBf16, ordered);
        check(problem, gpu, device);
      }
    }
  }
}

TEST_F(CudnnGraphs, ServeEveryPlanOnEveryGpuInFewExecutions) {
  for_each_problem(false, [](const AttentionProblem& problem, const KnownGpu&, const Gpu& device) {
    forward_graph(problem, device);
    const auto slice = backward_slice(problem, QueryGradient::kAccumulated, device);
    const std::int64_t sequences = problem.shape.batch / slice.batch;
    const std::int64_t executions = sequences * (problem.shape.kv_heads / slice.kv_heads);
    EXPECT_LE(executions, 4 * problem.shape.batch);
  });
}

// What every run takes, and what runs take that repeat to the bit, on the engine of each GPU's own
// kind: a graph that only an older kind recognises would run at a third of the rate.
TEST_F(CudnnGraphs, OfBothBackwardPassesCompileForTheEngineOfEachGpu) {
  for (const KnownGpu& gpu : kGpus) {
    const Gpu device = described(gpu.name);
    for (const QueryGradient form : {QueryGradient::kAccumulated, QueryGradient::kOrdered}) {
      const bool ordered = form == QueryGradient::kOrdered;
      SCOPED_TRACE(std::string(gpu.name) + (ordered ? ", ordered" : ""));
      AttentionProblem problem = problem_of(kLlama8b);
      const AttentionShape& s = problem.shape;
      problem.most_workspace_bytes = attention_workspace_bytes(s.batch, s.seq, s.heads, s.kv_heads,
                                                               s.head_dim, DType::kBf16, ordered);
      const auto slice = backward_slice(problem, form, device);
      AttentionGraph graph = backward_graph(problem, slice, form, device);
      EXPECT_THAT(graph.engine(), StartsWith(gpu.engine));
      expect_only_loading_fails(std::move(graph));
    }
  }
}

// Data-centre Blackwell adds the parts of dQ in order without a matrix of T x T a head.
TEST_F(CudnnGraphs, BlackwellNeedsNoMatrixForAFixedOrder) {
  const auto need = [&](const char* gpu) {
    return whole_graph(problem_of(kLlama8b), QueryGradient::kOrdered, described(gpu))
        .workspace_bytes();
  };
  EXPECT_LT(8 * need("b200"), need("h100"));
}

/// Elsewhere cuDNN keeps a matrix for every document, or has no engine.
bool has_documents(const KnownGpu& gpu) {
  return std::string_view(gpu.engine) != "eng7_";
}

/// Packed documents as a run asks for them.
AttentionProblem packed(const KnownModel& model, std::int64_t batch, std::int64_t seq,
                        std::int64_t most) {
  AttentionProblem problem = problem_of({.batch = batch,
                                         .seq = seq,
                                         .heads = model.heads,
                                         .kv_heads = model.kv_heads,
                                         .head_dim = 128});
  problem.documents = true;
  problem.most_documents = most;
  problem.most_workspace_bytes =
      attention_workspace_bytes(batch, seq, model.heads, model.kv_heads, 128, DType::kBf16);
  return problem;
}

TEST_F(CudnnGraphs, ServePackedDocumentsWithinThePlansWorkspaceOnHopperAndBlackwell) {
  for (const KnownGpu& gpu : kGpus) {
    if (!has_documents(gpu)) continue;
    const Gpu device = described(gpu.name);
    for (const KnownModel& model : kModels) {
      for (const std::int64_t seq : {2048, 4096, 32768}) {
        for (const std::int64_t batch : {1, 4}) {
          SCOPED_TRACE(std::string(gpu.name) + ", " + model.name + ", " + std::to_string(seq));
          AttentionProblem problem = packed(model, batch, seq, 64 * batch);
          if (batch > 1) problem.shape.softcap = 50;
          forward_graph(problem, device);
          const auto slice = backward_slice(problem, QueryGradient::kAccumulated, device);
          EXPECT_LE(slice.bytes(), problem.most_workspace_bytes);
        }
      }
    }
  }
}

TEST_F(CudnnGraphs, OfPackedDocumentsCompileForTheEngineOfEachGpu) {
  for (const KnownGpu& gpu : kGpus) {
    if (!has_documents(gpu) || std::string_view(gpu.name) == "h200") continue;
    SCOPED_TRACE(gpu.name);
    const Gpu device = described(gpu.name);
    const AttentionProblem problem = packed(kModels[0], 1, 4096, 16);
    const auto slice = backward_slice(problem, QueryGradient::kAccumulated, device);
    AttentionGraph backward = backward_graph(problem, slice, QueryGradient::kAccumulated, device);
    EXPECT_THAT(backward.engine(), StartsWith(gpu.engine));
    expect_only_loading_fails(std::move(backward));
    expect_only_loading_fails(forward_graph(problem, device));
  }
}

TEST_F(CudnnGraphs, OfPackedDocumentsAreRefusedWhereTheyWouldKeepAMatrixEach) {
  for (const KnownGpu& gpu : kGpus) {
    if (has_documents(gpu)) continue;
    EXPECT_THAT(
        refused(packed(kModels[0], 1, 4096, 16), QueryGradient::kAccumulated, described(gpu.name)),
        StartsWith("has no engine on this GPU for heads of 128"))
        << gpu.name;
  }
}

/// What gemma, gemma 2 and mpt ask for beyond Llama's.
struct OtherHeads {
  const char* name;
  AttentionShape shape;
  bool hopper_only;  // backward of heads beyond 128
};
const OtherHeads kOtherHeads[] = {
    {"gemma-7b", {.seq = 4096, .heads = 16, .kv_heads = 16, .head_dim = 256}, true},
    {"gemma-2b", {.seq = 4096, .heads = 8, .kv_heads = 1, .head_dim = 256}, true},
    {"gemma-2-9b", {.seq = 4096, .heads = 16, .kv_heads = 8, .head_dim = 256, .softcap = 50}, true},
    {"gemma-2-27b",
     {.seq = 4096, .heads = 32, .kv_heads = 16, .head_dim = 128, .softcap = 50},
     false},
    {"mpt-7b", {.seq = 4096, .heads = 32, .kv_heads = 32, .head_dim = 128, .alibi = true}, false},
    {"mpt-30b", {.seq = 4096, .heads = 64, .kv_heads = 64, .head_dim = 112, .alibi = true}, false}};

// Wider heads than 128 have a backward pass on Hopper only.
TEST_F(CudnnGraphs, ServeCapsAndSlopesEverywhereAndWideHeadsOnHopper) {
  for (const KnownGpu& gpu : kGpus) {
    const Gpu device = described(gpu.name);
    for (const OtherHeads& other : kOtherHeads) {
      SCOPED_TRACE(std::string(gpu.name) + ", " + other.name);
      AttentionProblem problem = problem_of(other.shape);
      const AttentionShape& s = problem.shape;
      forward_graph(problem, device);
      for (const QueryGradient form : {QueryGradient::kAccumulated, QueryGradient::kOrdered}) {
        problem.most_workspace_bytes =
            attention_workspace_bytes(1, s.seq, s.heads, s.kv_heads, s.head_dim, DType::kBf16,
                                      form == QueryGradient::kOrdered);
        const bool is_hopper = gpu.multiprocessors == 132;
        EXPECT_EQ(refused(problem, form, device).empty(), is_hopper || !other.hopper_only)
            << refused(problem, form, device);
        // As the simulator prices it.
        AttentionNeeds needs = needs_of(problem);
        needs.has_wide_engine = has_wide_attention_engine(is_hopper ? "hopper" : "another");
        EXPECT_EQ(attention_form(needs) == AttentionForm::kCudnn, is_hopper || !other.hopper_only);
      }
    }
  }
}

TEST_F(CudnnGraphs, WithCapsAndSlopesCompile) {
  for (const OtherHeads& other : kOtherHeads) {
    if (std::string_view(other.name) != "gemma-2-9b" && std::string_view(other.name) != "mpt-7b")
      continue;
    const AttentionProblem problem = problem_of(other.shape);
    expect_only_loading_fails(forward_graph(problem, gpu_));
    expect_only_loading_fails(whole_graph(problem, QueryGradient::kAccumulated, gpu_));
  }
}

TEST_F(CudnnGraphs, KeepEveryGpuBusyWhereTheOrderIsFixed) {
  for_each_problem(true,
                   [](const AttentionProblem& problem, const KnownGpu& gpu, const Gpu& device) {
                     const auto slice = backward_slice(problem, QueryGradient::kOrdered, device);
                     const AttentionShape& s = problem.shape;
                     const std::int64_t heads = slice.kv_heads * s.group() * slice.batch;
                     const std::int64_t blocks = (s.seq + 127) / 128 * heads;
                     EXPECT_GE(blocks, 2 * gpu.multiprocessors);
                   });
}

TEST(CudnnAttention, SaysWhatItDoesNotTake) {
  const auto attention = make_attention(QueryGradient::kOrdered);
  EXPECT_EQ(attention->name(), "cudnn-ordered");
  EXPECT_EQ(make_attention(QueryGradient::kAccumulated)->name(), "cudnn");
  EXPECT_TRUE(attention->repeatable());
  AttentionProblem problem = problem_of(kLlama8b);
  problem.documents = true;
  EXPECT_EQ(attention->refusal(problem), "cannot mask packed documents");
  const auto accumulated = make_attention(QueryGradient::kAccumulated);
  EXPECT_EQ(accumulated->refusal(problem),
            "cannot mask packed documents of which there are more than 64 a sequence");
  problem.most_documents = 16;
  problem.shape.alibi = true;
  EXPECT_EQ(accumulated->refusal(problem), "takes packed documents without slopes");
  problem = problem_of(kLlama8b);
  problem.dtype = DType::kFp32;
  EXPECT_EQ(attention->refusal(problem), "takes bf16, not fp32");
  problem = problem_of({.batch = 1, .seq = 8, .heads = 1, .kv_heads = 1, .head_dim = 20});
  EXPECT_EQ(attention->refusal(problem),
            "takes head sizes that are multiples of 8 up to 256, not 20");
  EXPECT_FALSE(accumulated->repeatable());
}

}  // namespace
}  // namespace shardwright::exec::cudnn
