// SPDX-License-Identifier: Apache-2.0
// Whether gradients are right: against finite differences of the whole model in double, and
// against what transformers computed (tests/data/reference, made by scripts/make_reference).
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <span>
#include <sstream>
#include <string>

#include "exec/train/safetensors.h"
#include "exec/train/train_state.h"
#include "sim/core/hf/config.h"
#include "tests/exec/reference_model.h"
#include "tests/exec/staged_training.h"
#include "tests/support/not_empty.h"
#include "tests/support/parameter_name.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright::exec {
namespace {

using namespace testing;

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float v : values) most = std::max(most, std::abs(static_cast<double>(v)));
  return most;
}

// Finite differences.

class FiniteDifferences : public ::testing::TestWithParam<Model> {};

TEST_P(FiniteDifferences, AgreeWithEveryGradient) {
  Training training;
  training.model = GetParam();
  training.plan = tiny_plan(Strategy::kSingle, 1, 1);
  training.plan.seq_len = 16;
  training.steps = 1;
  training.packs_documents = training.ignores_targets = true;
  training.loss_chunk_tokens = 12;
  // Weights large enough that every part of the arithmetic shows.
  Tensors before;
  training.prepare = [&](Executor& executor) {
    for (const OwnedState& state : executor.owned_state()) {
      const ParameterTensor& tensor = executor.layout().tensor(state.tensor);
      const bool is_norm = tensor.initial == Initial::kOnes;
      std::vector<float> values(static_cast<std::size_t>(state.parameter.size));
      kernels::random_normal({7, kernels::RandomSite::kInit, 0}, tensor.first_index,
                             is_norm ? 1 : 0, 0.15, values);
      executor.write(values, state.parameter);
    }
    executor.parameters_changed();
    TrainedStep start;
    collect(executor, start);
    before = start.weights;
  };
  const TrainedStep step = train(training)[0];
  Weights weights;
  for (const auto& [name, values] : before) weights[name] = {values.begin(), values.end()};
  const Batch batch = batch_of(training, 1, 0);
  const ReferenceModel reference(training.model, training.plan.seq_len);
  const double loss = reference.loss(weights, batch);
  EXPECT_NEAR(step.result.loss_sum, loss, 1e-5 * loss);

  constexpr double kStep = 1e-5;
  for (auto& [name, values] : not_empty(weights)) {
    const std::vector<float>& gradient = step.gradients.at(name);
    const double tolerance = 1e-4 * largest(gradient);
    ASSERT_GT(tolerance, 0) << name;
    // The element that matters most, and some others.
    const auto most = std::max_element(gradient.begin(), gradient.end(),
                                       [](float a, float b) { return std::abs(a) < std::abs(b); });
    std::vector<std::size_t> places{static_cast<std::size_t>(most - gradient.begin())};
    const kernels::RandomStream random{13, kernels::RandomSite::kSynthetic, 0};
    for (std::uint64_t i = 0; i < 2; ++i) {
      places.push_back(static_cast<std::size_t>(random.below(i, values.size())));
    }
    for (const std::size_t at : places) {
      const double value = values[at];
      values[at] = value + kStep;
      const double above = reference.loss(weights, batch);
      values[at] = value - kStep;
      const double below = reference.loss(weights, batch);
      values[at] = value;
      EXPECT_NEAR(static_cast<double>(gradient[at]), (above - below) / (2 * kStep), tolerance)
          << name << "[" << at << "]";
    }
  }
}

std::vector<Model> differentiated_models() {
  Model biased = tiny_qwen2();
  biased.name = "biased";
  biased.mlp_bias = biased.attention_out_bias = true;
  std::vector<Model> models{uneven_llama(), biased, tied(tiny_qwen3())};
  for (Model& model : models) model.layers = 2;
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, FiniteDifferences, ::testing::ValuesIn(differentiated_models()),
                         parameter_name);

// Transformers.

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> floats_of(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor* tensor = file.find(name);
  if (tensor == nullptr) throw std::runtime_error("the reference has no " + name);
  std::vector<float> values(static_cast<std::size_t>(tensor->spec.elements()));
  file.read_floats(*tensor, 0, values);
  return values;
}

std::vector<double> numbers_of(const SafetensorsFile& file, const std::string& name) {
  std::istringstream words(file.metadata().at(name));
  return {std::istream_iterator<double>(words), {}};
}

/// The stored model at a layout; a replica has one of its two sequences, or one after the other.
void compare_with_transformers(const std::string& name, Strategy strategy, StagedLayout layout) {
  layout.accum = 2 / layout.dp;
  SCOPED_TRACE(words_of(layout));
  const std::filesystem::path folder =
      std::filesystem::path(SHARDWRIGHT_TEST_DATA) / "reference" / name;
  const SafetensorsModel stored(folder);
  const SafetensorsFile reference(folder / "reference.safetensors");
  Training training;
  training.model = parse_hf_config(file_text(folder / "config.json"), "config.json", name);
  training.plan = staged_plan(strategy, layout);
  training.plan.seq_len = 24;
  training.max_norm = 1;
  const std::vector<double> losses = numbers_of(reference, "losses");
  const std::vector<double> norms = numbers_of(reference, "norms");
  training.steps = static_cast<int>(losses.size());
  std::mutex mutex;
  std::map<std::string, StoredForm> forms;
  training.prepare = [&](Executor& executor) {
    load_weights(executor, stored, name);
    const std::lock_guard lock(mutex);
    for (const ParameterTensor& tensor : executor.layout().tensors()) {
      forms[tensor.name] = tensor.stored;
    }
  };
  const StoredTensor& tokens = *reference.find("tokens");
  std::vector<std::int32_t> sequences(static_cast<std::size_t>(tokens.spec.elements()));
  reference.read(tokens, 0, std::as_writable_bytes(std::span(sequences)));
  const RankMesh mesh(training.plan, 1);
  training.batch = [&](int, int rank) {
    Batch batch;
    for (std::int64_t m = mesh.place_of(rank).dp; m < 2; m += layout.dp) {
      const auto first = sequences.begin() + 25 * m;
      batch.tokens.insert(batch.tokens.end(), first, first + 24);
      batch.targets.insert(batch.targets.end(), first + 1, first + 25);
    }
    return batch;
  };
  const std::vector<TrainedStep> steps = train(training);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepResult& result = steps[i].result;
    EXPECT_NEAR(result.loss(), losses[i], i == 0 ? 1e-6 : 1e-4) << "step " << i;
    EXPECT_NEAR(result.gradient_norm, norms[i], 1e-3 * norms[i]) << "step " << i;
  }
  const TrainedStep& step = steps[0];
  for (const auto& [tensor, sums] : not_empty(step.gradients)) {
    const std::vector<float> expected = floats_of(reference, "gradient." + tensor);
    ASSERT_EQ(expected.size(), sums.size()) << tensor;
    double worst = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const double mean = static_cast<double>(sums[i]) / 48;
      const auto at = forms.at(tensor).file_index(static_cast<std::int64_t>(i));
      worst = std::max(worst, std::abs(mean - expected[static_cast<std::size_t>(at)]));
    }
    EXPECT_LE(worst, 1e-4 * largest(expected)) << tensor;
  }
}

constexpr PipelineKind k1f1b = PipelineKind::kOneForwardOneBackward;

class Transformers : public ::testing::TestWithParam<std::string> {
 protected:
  void compare(Strategy strategy, const StagedLayout& layout) {
    compare_with_transformers(GetParam(), strategy, layout);
  }
  std::int64_t tp() const { return GetParam() == "mpt" ? 3 : 2; }  // it has three heads
};

TEST_P(Transformers, GiveTheSameLossGradientsAndSteps) {
  compare(Strategy::kSingle, {k1f1b, 1, 1});
  compare(Strategy::kYafsdp, {k1f1b, 1, 1, 1, 2});
}

TEST_P(Transformers, GiveTheSameOnTensorRanks) {
  compare(Strategy::kYafsdp, {k1f1b, tp(), 1});
  compare(Strategy::kFsdp2, {k1f1b, tp(), 1, 1, 2});
}

// Chunks of two stages with two chunks each are the embedding, each layer and the head.
TEST_P(Transformers, GiveTheSameInPipelines) {
  compare(Strategy::kYafsdp, {k1f1b, 1, 2});
  compare(Strategy::kZero1, {PipelineKind::kGpipe, tp(), 2});
  compare(Strategy::kFsdp2, {PipelineKind::kInterleaved, tp(), 2, 2});
  compare(Strategy::kZero2, {PipelineKind::kZb1p, tp(), 2});
  compare(Strategy::kYafsdp, {PipelineKind::kZbv, 1, 2, 2});
  compare(Strategy::kFsdp2NoReshard, {k1f1b, tp(), 2, 1, 2});
}

// Two or four ranks have the same key/value head.
TEST(TransformersOnTensorRanks, GiveTheSameWhereRanksShareKeyValueHeads) {
  for (const char* name : {"gpt_bigcode", "llama", "phi3", "qwen2", "qwen3"}) {
    SCOPED_TRACE(name);
    compare_with_transformers(name, Strategy::kYafsdp, {k1f1b, 4, 1});
    compare_with_transformers(name, Strategy::kZero2, {k1f1b, 4, 1, 1, 2});
    compare_with_transformers(name, Strategy::kYafsdp, {PipelineKind::kZb1p, 4, 2});
  }
}

/// Loads a stored model with one tensor more.
void load_with(const std::string& name, const TensorSpec& more, std::span<const float> values) {
  const std::filesystem::path folder =
      std::filesystem::path(SHARDWRIGHT_TEST_DATA) / "reference" / name;
  const SafetensorsModel stored(folder);
  std::vector<TensorSpec> specs{more};
  for (const std::string& known : stored.names()) {
    specs.push_back(*stored.find(known));
    specs.back().type = TensorType::kF32;
  }
  const shardwright::testing::TempFolder to;
  write_safetensors_model(to.path(), specs, 1 << 30, [&](const TensorSpec& spec, const auto& give) {
    std::vector<float> whole(values.begin(), values.end());
    if (spec.name != more.name) {
      whole.resize(static_cast<std::size_t>(spec.elements()));
      stored.read_floats(spec.name, 0, whole);
    }
    give(std::as_bytes(std::span(whole)));
  });
  const SafetensorsModel written(to.path());
  Training training;
  training.model = parse_hf_config(file_text(folder / "config.json"), "config.json", name);
  training.plan = staged_plan(Strategy::kYafsdp, {k1f1b, 1, 1, 1, 2});
  training.steps = 1;
  training.prepare = [&](Executor& executor) { load_weights(executor, written, "w"); };
  train(training);
}

// A layer more, or a head of its own where the model ties it, would be left out without a word.
TEST(Weights, WithTensorsThatTheModelLacksAreRefused) {
  const SafetensorsModel tied(std::filesystem::path(SHARDWRIGHT_TEST_DATA) / "reference/llama3");
  const std::string table = "model.embed_tokens.weight";
  TensorSpec head{"lm_head.weight", TensorType::kF32, tied.find(table)->shape};
  std::vector<float> values(static_cast<std::size_t>(head.elements()));
  tied.read_floats(table, 0, values);
  load_with("llama3", head, values);
  values.back() += 1;
  EXPECT_EQ(
      shardwright::testing::refusal_of([&] { load_with("llama3", head, values); }),
      "w: tensor lm_head.weight is none of the model's, which ties its head to its embedding; "
      "expected the weights of this model's config.json");
  const std::vector<float> few(4);
  load_with("gpt2", {"transformer.h.0.attn.bias", TensorType::kF32, {2, 2}}, few);
  const TensorSpec layer{"model.layers.2.mlp.up_proj.weight", TensorType::kF32, {2, 2}};
  EXPECT_EQ(shardwright::testing::refusal_of([&] { load_with("llama", layer, few); }),
            "w: tensor model.layers.2.mlp.up_proj.weight is none of the model's; expected the "
            "weights of this model's config.json");
}

INSTANTIATE_TEST_SUITE_P(Models, Transformers,
                         ::testing::Values("cwm", "ernie4_5", "gemma", "gemma2", "glm", "glm4",
                                           "gpt2", "gpt_bigcode", "gpt_neox", "helium", "llama",
                                           "llama3", "ministral", "mistral", "mpt", "phi3", "qwen2",
                                           "qwen3", "seed_oss", "stablelm", "starcoder2",
                                           "vaultgemma"),
                         parameter_name);

}  // namespace
}  // namespace shardwright::exec
