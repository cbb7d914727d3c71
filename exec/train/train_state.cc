// SPDX-License-Identifier: Apache-2.0
#include "exec/train/train_state.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/hf/config.h"

namespace shardwright::exec {
namespace {

/// Of numbers whose exponent is all ones (`exponent`) when they are infinite or NaN.
template <typename Bits>
bool all_finite(std::span<const std::byte> bytes, Bits exponent) {
  bool broken = false;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    broken |= (value & exponent) == exponent;
  }
  return !broken;
}

const Array& part_of(const OwnedState& state, StateKind kind) {
  switch (kind) {
    case StateKind::kParameter:
      return state.parameter;
    case StateKind::kFirstMoment:
      return state.first_moment;
    case StateKind::kSecondMoment:
      break;
  }
  return state.second_moment;
}

/// Calls f(first element in the tensor, values) for each run of what is owned.
template <class F>
void for_each_run(const OwnedState& state, const ParameterTensor& tensor, std::span<float> values,
                  const F& f) {
  const auto cols = static_cast<std::size_t>(state.cols);
  for (std::int64_t row = 0; row < state.rows; ++row) {
    f(state.tensor_offset + row * tensor.row_length(),
      values.subspan(static_cast<std::size_t>(row) * cols, cols));
  }
}

/// The config as transformers expect it beside fp32 weights.
std::string exported_config(const std::string& text) {
  auto config = parse_ordered_json(text);
  for (auto at = config.begin(); at != config.end();) {
    at = at.key().starts_with("_") ? config.erase(at) : std::next(at);  // comments
  }
  config.erase("dtype");
  config["torch_dtype"] = "float32";
  return config.dump(2) + "\n";
}

/// What Transformers kept in files though it follows from the configuration.
constexpr std::string_view kComputed[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                          ".attention.bias", ".attention.masked_bias"};

/// Whether a file's tensor is the table that embedding and head share, once more.
bool is_tied_copy(const SafetensorsModel& model, const TensorSpec& tensor,
                  const ParameterLayout& layout) {
  if (layout.tied_table() < 0) return false;
  const ParameterTensor& table = layout.tensor(layout.tied_table());
  if (tensor.shape != table.stored.file_shape()) return false;
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // elements
  std::vector<float> one, other;
  for (std::int64_t at = 0; at < table.size; at += kPiece) {
    one.resize(static_cast<std::size_t>(std::min(kPiece, table.size - at)));
    other.resize(one.size());
    model.read_floats(tensor.name, at, one);
    model.read_floats(table.name, at, other);
    if (one != other) return false;
  }
  return true;
}

/// What a file has beside the model's tensors would be left out of the training and of what is
/// exported: another model's file.
void require_no_others(const SafetensorsModel& model, const ParameterLayout& layout,
                       const std::string& name) {
  std::set<std::string_view> known;
  for (const ParameterTensor& tensor : layout.tensors()) known.insert(tensor.name);
  for (const std::string& other : model.names()) {
    const bool is_computed =
        std::any_of(std::begin(kComputed), std::end(kComputed),
                    [&](std::string_view end) { return other.ends_with(end); });
    if (known.contains(other) || is_computed || is_tied_copy(model, *model.find(other), layout))
      continue;
    throw Error(fmt::format(
        "{}: tensor {} is none of the model's{}; expected the weights of this "
        "model's config.json",
        name, other, layout.tied_table() < 0 ? "" : ", which ties its head to its embedding"));
  }
}

/// How the files of a checkpoint's model keep its tensors.
class ExportedForms {
 public:
  explicit ExportedForms(const std::string& config_text) {
    const auto config = parse_json(config_text);
    form_ = find_family_form(config.value("model_type", std::string()));
    heads_.heads = config.value("num_attention_heads", std::int64_t{1});
    if (form_ != nullptr && form_->turns_neighbours) {
      heads_ = head_shape(parse_hf_config(config_text, "config.json", "the checkpoint's model"));
    }
  }
  StoredForm of(const CheckpointTensor& tensor) const {
    if (form_ == nullptr) return {StoredOrder::kAsHere, tensor.shape, heads_};
    return stored_form(*form_, tensor.name, tensor.shape, heads_);
  }

 private:
  const FamilyForm* form_;
  HeadShape heads_;
};

}  // namespace

std::string first_not_finite(const StateSnapshot& snapshot) {
  for (std::size_t i = 0; i < snapshot.specs.size(); ++i) {
    const bool finite = snapshot.specs[i].type == TensorType::kF32
                            ? all_finite<std::uint32_t>(snapshot.data[i], 0x7f80'0000)
                            : all_finite<std::uint16_t>(snapshot.data[i], 0x7f80);
    if (!finite) {
      return fmt::format("{} holds values that are not finite", snapshot.specs[i].name);
    }
  }
  return {};
}

std::byte* SnapshotMemory::room(Bytes bytes) {
  bytes = std::max<Bytes>(1, bytes);  // also of a rank that owns nothing
  if (bytes > bytes_) {
    memory_.reset();  // both at once may be too much
    memory_ = device_.allocate_host(bytes);
    bytes_ = bytes;
  }
  return static_cast<std::byte*>(memory_->data());
}

Bytes snapshot_bytes(const Executor& executor) {
  Bytes bytes = 0;
  for (const OwnedState& state : executor.counted_state()) {
    for (const StateKind kind : kStateKinds) bytes += part_of(state, kind).bytes();
  }
  return bytes;
}

StateSnapshot take_snapshot(Executor& executor, SnapshotMemory& memory) {
  StateSnapshot snapshot;
  std::byte* at = memory.room(snapshot_bytes(executor));
  for (const OwnedState& state : executor.counted_state()) {
    const std::string& name = executor.layout().tensor(state.tensor).name;
    std::vector<std::int64_t> shape = {state.cols};
    if (state.rows > 1) shape.insert(shape.begin(), state.rows);
    for (const StateKind kind : kStateKinds) {
      const Array& array = part_of(state, kind);
      snapshot.specs.push_back({fmt::format("{}:{}:{}", name_of(kind), name, state.tensor_offset),
                                array.dtype == DType::kFp32 ? TensorType::kF32 : TensorType::kBf16,
                                shape});
      snapshot.data.push_back({at, static_cast<std::size_t>(array.bytes())});
      executor.copy_to_host(array, at);
      at += array.bytes();
    }
  }
  executor.device().synchronize();
  return snapshot;
}

std::vector<CheckpointTensor> tensors_of(const ParameterLayout& layout) {
  std::vector<CheckpointTensor> tensors;
  for (const ParameterTensor& tensor : layout.tensors()) {
    tensors.push_back({tensor.name, tensor.shape});
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return tensors;
}

void restore(Executor& executor, const Plan& plan, const Checkpoint& checkpoint) {
  const std::string folder = checkpoint.folder().string();
  const auto mine = tensors_of(executor.layout());
  const auto& theirs = checkpoint.manifest().tensors;
  for (std::size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
    if (i < mine.size() && i < theirs.size() && mine[i] == theirs[i]) continue;
    const auto words = [&](const std::vector<CheckpointTensor>& tensors) {
      return i < tensors.size()
                 ? fmt::format("{} [{}]", tensors[i].name, fmt::join(tensors[i].shape, ", "))
                 : std::string("nothing");
    };
    throw Error(fmt::format("{}: made for another model: it has {}, expected {}", folder,
                            words(theirs), words(mine)));
  }
  const Plan& other = checkpoint.manifest().plan;
  if (other.moment_dtype != plan.moment_dtype || other.master_dtype != plan.master_dtype) {
    throw Error(fmt::format("{}: made with {} masters and {} moments, but the plan has {} and {}",
                            folder, name_of(other.master_dtype), name_of(other.moment_dtype),
                            name_of(plan.master_dtype), name_of(plan.moment_dtype)));
  }
  for (const OwnedState& state : executor.owned_state()) {
    const ParameterTensor& tensor = executor.layout().tensor(state.tensor);
    for (const StateKind kind : kStateKinds) {
      const Array& array = part_of(state, kind);
      std::vector<float> values(static_cast<std::size_t>(array.size));
      for_each_run(state, tensor, values, [&](std::int64_t first, std::span<float> run) {
        checkpoint.read(kind, tensor.name, first, run);
      });
      executor.write(values, array);
    }
  }
  executor.parameters_changed();
}

void load_weights(Executor& executor, const SafetensorsModel& model, const std::string& name) {
  for (const ParameterTensor& tensor : executor.layout().tensors()) {
    const TensorSpec* found = model.find(tensor.name);
    if (found == nullptr) throw Error(fmt::format("{}: tensor {} lacks", name, tensor.name));
    const std::vector<std::int64_t> expected = tensor.stored.file_shape();
    if (found->shape != expected) {
      throw Error(fmt::format("{}: tensor {} is [{}], expected [{}]", name, tensor.name,
                              fmt::join(found->shape, ", "), fmt::join(expected, ", ")));
    }
  }
  require_no_others(model, executor.layout(), name);
  for (const OwnedState& state : executor.owned_state()) {
    std::vector<float> values(static_cast<std::size_t>(state.parameter.size));
    const ParameterTensor& tensor = executor.layout().tensor(state.tensor);
    std::vector<float> whole;
    if (tensor.stored.order != StoredOrder::kAsHere) {
      whole.resize(static_cast<std::size_t>(tensor.size));
      model.read_floats(tensor.name, 0, whole);
    }
    for_each_run(state, tensor, values, [&](std::int64_t first, std::span<float> run) {
      if (whole.empty()) return model.read_floats(tensor.name, first, run);
      for (float& value : run)
        value = whole[static_cast<std::size_t>(tensor.stored.file_index(first++))];
    });
    executor.write(values, state.parameter);
  }
  executor.parameters_changed();
}

void export_model(const Checkpoint& checkpoint, const std::filesystem::path& folder,
                  std::int64_t max_part_bytes) {
  require_folder_or_none(folder);
  make_durable_folder(folder);
  const ExportedForms forms(checkpoint.manifest().config);
  std::vector<TensorSpec> specs;
  std::map<std::string, StoredForm> stored;
  for (const CheckpointTensor& tensor : checkpoint.manifest().tensors) {
    const StoredForm& form = stored[tensor.name] = forms.of(tensor);
    specs.push_back({tensor.name, TensorType::kF32, form.file_shape()});
  }
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // elements
  write_safetensors_model(
      folder, specs, max_part_bytes,
      [&](const TensorSpec& spec, const std::function<void(std::span<const std::byte>)>& give) {
        std::vector<float> values;
        const StoredForm& form = stored.at(spec.name);
        if (form.order != StoredOrder::kAsHere) {
          values.resize(static_cast<std::size_t>(spec.elements()));
          checkpoint.read(StateKind::kParameter, spec.name, 0, values);
          std::vector<float> turned(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) {
            turned[static_cast<std::size_t>(form.file_index(static_cast<std::int64_t>(i)))] =
                values[i];
          }
          give(std::as_bytes(std::span(turned)));
          return;
        }
        for (std::int64_t at = 0; at < spec.elements(); at += kPiece) {
          values.resize(static_cast<std::size_t>(std::min(kPiece, spec.elements() - at)));
          checkpoint.read(StateKind::kParameter, spec.name, at, values);
          give(std::as_bytes(std::span(values)));
        }
      });
  write_file_atomically(folder / "config.json", exported_config(checkpoint.manifest().config),
                        OutputPlace::kInFolder);
}

}  // namespace shardwright::exec
