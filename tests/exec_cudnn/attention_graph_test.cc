// SPDX-License-Identifier: Apache-2.0
// cuDNN's own judgement of our graphs on a machine without a GPU: a device described in JSON, and
// the toolkit's stub of the driver. Engines are picked and kernels compiled; only their loading
// fails, as it must.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "exec/cudnn/attention.h"
#include "exec/cudnn/graph.h"
#include "sim/core/base/error.h"
#include "sim/core/workspace.h"

namespace shardwright::exec::cudnn {
namespace {

using kernels::AttentionShape;
using kernels::cuda::AttentionProblem;

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
Descriptor described(const std::string& name) {
  std::ifstream file(SHARDWRIGHT_TEST_DATA "/cudnn/" + name + ".json");
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(json.empty()) << name;
  return device_of(json);
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
    device_.emplace(described("h200"));
  }

  /// A plan of the graph compiles but cannot be loaded.
  void expect_only_loading_fails(Graph graph) {
    expect_only_loading_fails(std::move(graph), *device_, false);
  }
  static void expect_only_loading_fails(Graph graph, const Descriptor& device, bool fixed_order) {
    try {
      Plan plan(std::move(graph), device, fixed_order);
      FAIL() << "a stub loaded a kernel";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cuLibraryLoadData"), std::string::npos)
          << error.what();
    }
  }

  std::optional<Descriptor> device_;
};

TEST_F(CudnnGraphs, ForwardIsTakenAndCompiles) {
  for (const AttentionShape& shape : kShapes) {
    Graph graph = attention_forward_graph(problem_of(shape));
    EXPECT_EQ(graph.operations(), 14u);
    EXPECT_GE(engines(graph.finish(), *device_).size(), 1u);
    if (is_compiled(shape)) expect_only_loading_fails(std::move(graph));
  }
}

TEST_F(CudnnGraphs, BackwardIsTakenAndCompiles) {
  for (const AttentionShape& shape : kShapes) {
    const std::size_t reductions = shape.group() > 1 ? 2 : 0;
    for (const QueryGradient form : {QueryGradient::kOrdered, QueryGradient::kAccumulated}) {
      Graph graph = attention_backward_graph(problem_of(shape), form);
      const std::size_t identity = form == QueryGradient::kAccumulated ? 1 : 0;
      EXPECT_EQ(graph.operations(), 21 + reductions + identity);
      EXPECT_GE(engines(graph.finish(), *device_).size(), 1u);
      if (is_compiled(shape)) expect_only_loading_fails(std::move(graph));
    }
  }
}

TEST_F(CudnnGraphs, WorkspacesAreThoseOfTheFusedEngines) {
  // An engine that does not recognise the graph writes further T x T matrices to memory.
  const auto need = [&](const AttentionShape& shape, QueryGradient form) {
    AttentionProblem problem = problem_of(shape);
    problem.most_workspace_bytes = Bytes{1} << 40;
    return backward_slice(problem, form, *device_)->engine_bytes;
  };
  const AttentionShape& s = kLlama8b;
  const Bytes matrix = 2 * s.heads * s.seq * s.seq;
  const Bytes every_head = 2 * 2 * s.tokens() * s.heads * s.head_dim;  // dK and dV before the sum
  EXPECT_NEAR(static_cast<double>(need(s, QueryGradient::kAccumulated)),
              static_cast<double>(every_head), 4096.0);
  EXPECT_NEAR(static_cast<double>(need(s, QueryGradient::kOrdered)),
              static_cast<double>(matrix + every_head), 4096.0);
}

TEST_F(CudnnGraphs, TheWorkspaceIsBoundedBySlices) {
  const auto slice_within = [&](Bytes limit, QueryGradient form) {
    AttentionProblem problem = problem_of(kLlama8b);
    problem.most_workspace_bytes = limit;
    return backward_slice(problem, form, *device_);
  };
  const auto whole = slice_within(Bytes{1} << 40, QueryGradient::kOrdered);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->kv_heads, 8);
  const auto half = slice_within(Bytes{1} << 30, QueryGradient::kOrdered);
  ASSERT_TRUE(half);
  EXPECT_EQ(half->kv_heads, 4);
  EXPECT_LE(half->bytes(), Bytes{1} << 30);
  EXPECT_FALSE(slice_within(1 << 20, QueryGradient::kOrdered));
  expect_only_loading_fails(attention_backward_graph(slice_problem(problem_of(kLlama8b), *half),
                                                     QueryGradient::kOrdered));
  // dK and dV for every query head and the fp32 sums of dQ, of half of the heads.
  const auto accumulated = slice_within(Bytes{70} << 20, QueryGradient::kAccumulated);
  ASSERT_TRUE(accumulated);
  EXPECT_EQ(accumulated->kv_heads, 4);
}

TEST_F(CudnnGraphs, PlansHaveTheRoom) {
  for (AttentionShape shape : kShapes) {
    for (const std::int64_t seq : {512, 2048, 8192}) {
      shape.seq = seq;
      AttentionProblem problem = problem_of(shape);
      problem.most_workspace_bytes = attention_workspace_bytes(
          shape.batch, seq, shape.heads, shape.kv_heads, shape.head_dim, DType::kBf16);
      EXPECT_TRUE(backward_slice(problem, QueryGradient::kAccumulated, *device_))
          << shape.heads << " heads, " << seq << " tokens";
      problem.most_workspace_bytes = attention_workspace_bytes(
          shape.batch, seq, shape.heads, shape.kv_heads, shape.head_dim, DType::kBf16, true);
      EXPECT_TRUE(backward_slice(problem, QueryGradient::kOrdered, *device_))
          << shape.heads << " heads, " << seq << " tokens";
    }
  }
}

/// Engines by cuDNN's count: 7 is built on mma.sync, 6 on Hopper's wgmma, 5 on Blackwell's tcgen05.
struct Gpu {
  const char* name;
  std::int64_t multiprocessors;
  std::int64_t engine;  // of both backward passes
};
constexpr Gpu kGpus[] = {{"a100", 108, 7}, {"h100", 132, 6}, {"h200", 132, 6},
                         {"b200", 148, 5}, {"l40s", 142, 7}, {"rtx5090", 170, 7}};

struct KnownModel {
  const char* name;
  std::int64_t heads, kv_heads;
};
constexpr KnownModel kModels[] = {
    {"llama-3-8b", 32, 8}, {"llama-3-70b", 64, 8}, {"llama-3-405b", 128, 8}};

/// Calls check(problem, device) for all of them, with the workspace that a plan has.
template <class Check>
void for_each_problem(bool ordered, Check&& check) {
  for (const Gpu& gpu : kGpus) {
    const Descriptor device = described(gpu.name);
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
  for_each_problem(
      false, [](const AttentionProblem& problem, const Gpu&, const Descriptor& device) {
        Graph forward = attention_forward_graph(problem);
        EXPECT_GE(engines(forward.finish(), device).size(), 1u);
        const auto slice = backward_slice(problem, QueryGradient::kAccumulated, device);
        ASSERT_TRUE(slice);
        const std::int64_t sequences = problem.shape.batch / slice->batch;
        const std::int64_t executions = sequences * (problem.shape.kv_heads / slice->kv_heads);
        EXPECT_LE(executions, 4 * problem.shape.batch);
      });
}

// What every run takes, and what runs take that repeat to the bit, on the engine of each GPU's own
// kind: a graph that only an older kind recognises would run at a third of the rate.
TEST_F(CudnnGraphs, OfBothBackwardPassesCompileForTheEngineOfEachGpu) {
  for (const Gpu& gpu : kGpus) {
    const Descriptor device = described(gpu.name);
    for (const QueryGradient form : {QueryGradient::kAccumulated, QueryGradient::kOrdered}) {
      const bool ordered = form == QueryGradient::kOrdered;
      SCOPED_TRACE(std::string(gpu.name) + (ordered ? ", ordered" : ""));
      AttentionProblem problem = problem_of(kLlama8b);
      const AttentionShape& s = problem.shape;
      problem.most_workspace_bytes = attention_workspace_bytes(s.batch, s.seq, s.heads, s.kv_heads,
                                                               s.head_dim, DType::kBf16, ordered);
      const auto slice = backward_slice(problem, form, device);
      ASSERT_TRUE(slice);
      Graph graph = attention_backward_graph(slice_problem(problem, *slice), form);
      EXPECT_EQ(engine_number(engines(graph.finish(), device, ordered).front()), gpu.engine);
      expect_only_loading_fails(std::move(graph), device, ordered);
    }
  }
}

// Data-centre Blackwell adds the parts of dQ in order without a matrix of T x T a head.
TEST_F(CudnnGraphs, BlackwellNeedsNoMatrixForAFixedOrder) {
  AttentionProblem problem = problem_of(kLlama8b);
  problem.most_workspace_bytes = Bytes{1} << 40;
  const auto need = [&](const char* gpu) {
    return backward_slice(problem, QueryGradient::kOrdered, described(gpu))->engine_bytes;
  };
  EXPECT_LT(8 * need("b200"), need("h100"));
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
  for (const Gpu& gpu : kGpus) {
    if (gpu.engine == 7) continue;
    const Descriptor device = described(gpu.name);
    for (const KnownModel& model : kModels) {
      for (const std::int64_t seq : {2048, 4096, 32768}) {
        for (const std::int64_t batch : {1, 4}) {
          SCOPED_TRACE(std::string(gpu.name) + ", " + model.name + ", " + std::to_string(seq));
          const AttentionProblem problem = packed(model, batch, seq, 64 * batch);
          Graph forward = attention_forward_graph(problem);
          EXPECT_EQ(forward.operations(), 20u);
          EXPECT_GE(engines(forward.finish(), device).size(), 1u);
          const auto slice = document_slice(problem, device);
          ASSERT_TRUE(slice);
          EXPECT_LE(slice->bytes(), problem.most_workspace_bytes);
          // Nothing of the length of a matrix, or of every document.
          EXPECT_LT(slice->engine_bytes, 1 << 20);
        }
      }
    }
  }
}

TEST_F(CudnnGraphs, OfPackedDocumentsCompileForTheEngineOfEachGpu) {
  for (const Gpu& gpu : kGpus) {
    if (gpu.engine == 7 || std::string_view(gpu.name) == "h200") continue;
    SCOPED_TRACE(gpu.name);
    const Descriptor device = described(gpu.name);
    const AttentionProblem problem = packed(kModels[0], 1, 4096, 16);
    const auto slice = document_slice(problem, device);
    ASSERT_TRUE(slice);
    Graph backward = attention_backward_graph(slice_problem(problem, *slice),
                                              QueryGradient::kAccumulated, slice->strides(problem));
    EXPECT_EQ(engine_number(engines(backward.finish(), device).front()), gpu.engine);
    expect_only_loading_fails(std::move(backward), device, false);
    expect_only_loading_fails(attention_forward_graph(problem), device, false);
  }
}

TEST(CudnnDocuments, AreServedWhereTheyKeepNoMatrixEach) {
  AttentionProblem problem = packed(kModels[0], 1, 4096, 16);
  constexpr std::size_t kVersion = 91900;
  EXPECT_EQ(document_refusal(problem, 9, kVersion), "");
  EXPECT_EQ(document_refusal(problem, 10, kVersion), "");
  for (const int other : {8, 12}) {
    EXPECT_EQ(document_refusal(problem, other, kVersion),
              "masks packed documents on GPUs of compute capability 9 and 10 only");
  }
  EXPECT_EQ(document_refusal(problem, 9, 90800),
            "of version 9.8.0 is too old for packed documents, expected 9.10.0 or newer");
  problem.shape.alibi = true;
  EXPECT_EQ(document_refusal(problem, 9, kVersion), "takes packed documents without slopes");
  problem.most_documents = 0;
  EXPECT_EQ(document_refusal(problem, 9, kVersion),
            "cannot mask packed documents of which there are more than 64 a sequence");
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
  for (const Gpu& gpu : kGpus) {
    const Descriptor device = described(gpu.name);
    for (const OtherHeads& other : kOtherHeads) {
      SCOPED_TRACE(std::string(gpu.name) + ", " + other.name);
      AttentionProblem problem = problem_of(other.shape);
      const AttentionShape& s = problem.shape;
      Graph forward = attention_forward_graph(problem);
      EXPECT_GE(engines(forward.finish(), device).size(), 1u);
      for (const QueryGradient form : {QueryGradient::kAccumulated, QueryGradient::kOrdered}) {
        problem.most_workspace_bytes =
            attention_workspace_bytes(1, s.seq, s.heads, s.kv_heads, s.head_dim, DType::kBf16,
                                      form == QueryGradient::kOrdered);
        const bool is_hopper = gpu.multiprocessors == 132;
        EXPECT_EQ(backward_slice(problem, form, device).has_value(),
                  is_hopper || !other.hopper_only);
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
    Graph forward = attention_forward_graph(problem);
    EXPECT_EQ(forward.operations(), other.shape.alibi ? 19u : 17u);
    expect_only_loading_fails(std::move(forward));
    expect_only_loading_fails(attention_backward_graph(problem, QueryGradient::kAccumulated));
  }
}

TEST_F(CudnnGraphs, KeepEveryGpuBusyWhereTheOrderIsFixed) {
  for_each_problem(true,
                   [](const AttentionProblem& problem, const Gpu& gpu, const Descriptor& device) {
                     const auto slice = backward_slice(problem, QueryGradient::kOrdered, device);
                     ASSERT_TRUE(slice);
                     const AttentionShape part = slice_problem(problem, *slice).shape;
                     const std::int64_t blocks = (part.seq + 127) / 128 * part.heads * part.batch;
                     EXPECT_GE(blocks, 2 * gpu.multiprocessors);
                   });
}

TEST_F(CudnnGraphs, ErrorsCarryCuDnnsOwnWords) {
  Graph graph;
  const auto x = graph.between(CUDNN_DATA_FLOAT, {1, 1, 8, 8});
  try {
    graph.matmul(x, graph.between(CUDNN_DATA_FLOAT, {1, 1, 4, 8}), x);
    graph.finish();
    FAIL() << "8 x 8 times 4 x 8 was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("CUDNN_STATUS_BAD_PARAM"), std::string::npos)
        << error.what();
  }
}

TEST(CudnnAttention, SaysWhatItDoesNotTake) {
  const auto attention = make_attention(QueryGradient::kOrdered);
  EXPECT_EQ(attention->name(), "cudnn-ordered");
  EXPECT_EQ(make_attention(QueryGradient::kAccumulated)->name(), "cudnn");
  EXPECT_TRUE(attention->repeatable());
  AttentionProblem problem = problem_of(kLlama8b);
  problem.documents = true;
  EXPECT_EQ(attention->refusal(problem), "cannot mask packed documents");
  problem = problem_of(kLlama8b);
  problem.dtype = DType::kFp32;
  EXPECT_EQ(attention->refusal(problem), "takes bf16, not fp32");
  problem = problem_of({.batch = 1, .seq = 8, .heads = 1, .kv_heads = 1, .head_dim = 20});
  EXPECT_EQ(attention->refusal(problem),
            "takes head sizes that are multiples of 8 up to 256, not 20");
  EXPECT_FALSE(make_attention(QueryGradient::kAccumulated)->repeatable());
}

}  // namespace
}  // namespace shardwright::exec::cudnn
