// SPDX-License-Identifier: Apache-2.0
// The knobs of a plan as they are given and kept: on a command line, in a run file, in the
// environment, in a plan file, in a table of published runs.
//
// One table (plan_knobs.cc) says for each knob what it is called in each place, which values it
// takes, and what --help says of it; flags, plan files and ledgers are read by that table. A new
// knob is a field of Plan, one of GivenKnobs and a row there. What was given is kept apart from
// the plan, because a search holds fixed exactly what was given and a plan file is changed by
// exactly that.
#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "sim/core/base/csv.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/plan.h"

namespace shardwright {

class CsvRow;
class JsonReader;

/// "ckpt-layers": a number of layers, or all of them.
struct CheckpointedLayers {
  bool all = false;
  std::int64_t count = 0;

  std::int64_t of(std::int64_t layers) const { return all ? layers : count; }
};

/// What checkpointed layers recompute.
struct Recomputation {
  Recompute recompute = Recompute::kFull;
  std::uint16_t pieces = 0;  // under Recompute::kPieces
  bool operator==(const Recomputation&) const = default;
};

/// Of Plan::parallel and Plan::numerics, what was given.
struct GivenParallelism {
  std::optional<std::int64_t> tp, pp, virtual_stages, cp, ep, etp, lora;
  std::optional<double> expert_capacity;
  std::optional<ExpertLoad> expert_load;
  std::optional<CudaGraphs> cuda_graphs;
  std::optional<bool> sp, ep_overlap, fp8_params;
  std::optional<PipelineKind> pp_schedule;
  std::optional<ContextComm> cp_comm;
  std::optional<Dispatcher> dispatcher;
  std::optional<TensorOverlap> tp_overlap;
  std::optional<Precision> precision;
  std::optional<Fp8Recipe> fp8_recipe;
  std::optional<Optimizer> optimizer;
  std::optional<Quantize> quantize;
  std::optional<std::string> pp_layout, rank_order;
};

/// Activations of some layers, or the optimizer's state, are kept in the host's memory.
struct Offloading {
  Offload what = Offload::kNone;
  std::int64_t layers = 0;
};

/// The knobs that were given.
struct GivenKnobs {
  std::vector<Strategy> strategies;  // empty: not given
  std::optional<std::int64_t> shard_group, seq_len, packed_length, micro_batch, grad_accum;
  std::optional<CheckpointedLayers> ckpt_layers;
  std::optional<Recomputation> recompute;
  std::optional<DType> param_dtype, reduce_dtype, master_dtype, moment_dtype;
  std::optional<int> buffers, prefetch;
  std::optional<AttentionKind> attention;
  std::optional<std::int64_t> loss_chunks;
  std::optional<AllocatorKind> allocator;
  std::optional<Offloading> offload;
  GivenParallelism parallel;
  std::optional<bool> deterministic;
  std::optional<std::int64_t> sum_features, sum_uses;
};

/// What is true of a knob, as a set of bits.
enum KnobTraits : std::uint8_t {
  kSearched = 1,    // by a verb that searches, where it is not given
  kFilled = 2,      // its column is never empty
  kTextSays = 4,    // what is written as text says it though it has its default
  kFileSays = 8,    // and so does a plan file
  kZeroInFile = 16  // which says with a 0 what a flag leaves out
};

/// What a row of the table says of a knob.
struct KnobFacts {
  std::string_view name;            // "grad-accum"; plan files write it with '_'
  std::string_view column = {};     // of ledgers; empty: none, or one with its own words
  std::string what = {};            // what --help says
  std::string_view otherwise = {};  // what it calls the default; empty: nothing
  unsigned traits = 0;              // of KnobTraits
  CountRange range = {};            // of a number
  std::string type = {};            // of the value, as --help shows it

  bool is(KnobTraits trait) const { return (traits & trait) != 0; }
};

/// A row with what reads and writes it. Without `read` it is a knob of plan files alone.
struct PlanKnob : KnobFacts {
  bool divides = false;  // of Plan::parallel or Plan::numerics
  /// Throws Error that calls the knob `given_as`: "--grad-accum", "grad-accum in run.ini".
  std::function<void(GivenKnobs& knobs, std::string_view given_as, const std::string& text)> read =
      {};
  /// The text that read() takes for this plan's value; empty where a plan says it otherwise.
  std::function<std::string(const Plan& plan)> write = {};
  /// Sets the plan to what was given; empty where with_knobs does it, together with other knobs.
  std::function<void(const GivenKnobs& knobs, Plan& plan)> take = {};
  /// From and to the object of a plan file. Throws Error naming file and key.
  std::function<void(const JsonReader& object, Plan& plan)> from_file = {};
  std::function<void(const Plan& plan, nlohmann::ordered_json& object)> to_file = {};
  /// From `column`, which must be there. Throws Error naming file, line and column.
  std::function<void(const CsvRow& row, Plan& plan)> from_row = {};
};

/// In the order of plan files and of --help.
const std::vector<PlanKnob>& plan_knobs();
/// By its name, which must be one of the table.
const PlanKnob& plan_knob(std::string_view name);

/// Tokens of a sequence where nobody says, for every verb that predicts: as many as the model was
/// trained with, at most 8192; to fine-tune at most 2048, for examples are short.
std::int64_t usual_seq_len(const Model& model, bool fine_tunes);

/// The plan with every knob that was given but the strategy. A number of checkpointed layers
/// without a policy means full recomputation, a policy without a number all `layers`, 0 layers no
/// recomputation; more buffers are filled ahead unless the prefetch distance is given, too.
Plan with_knobs(Plan plan, const GivenKnobs& knobs, std::int64_t layers);

/// The plan with what was given of Plan::parallel and Plan::numerics.
void take_parallelism(const GivenParallelism& given, Plan& plan);

}  // namespace shardwright

// How the value of a knob is read and written, by its type: for plan_knobs.cc alone.
//
// make_knob ties a row to a field of Plan and to the one of GivenKnobs: from their types follow the
// five ways in and out. A row that is said otherwise somewhere replaces that way.

namespace shardwright::knob_forms {

using JsonValue = std::variant<bool, std::int64_t, double, std::string>;
void put(nlohmann::ordered_json& object, const std::string& key, const JsonValue& value);

/// The words of an enumeration, and the value of one of them.
template <typename Enum>
std::vector<std::string> words_for() {
  if constexpr (std::is_same_v<Enum, AllocatorKind>) {
    return {"native", "expandable"};
  } else if constexpr (std::is_same_v<Enum, Strategy>) {
    return strategy_names();
  } else {
    return words_of<Enum>();
  }
}

template <typename Enum>
std::optional<Enum> from_word(std::string_view word) {
  if constexpr (std::is_same_v<Enum, AllocatorKind>) {
    return allocator_from(word);
  } else if constexpr (std::is_same_v<Enum, Strategy>) {
    return strategy_from(word);
  } else {
    return shardwright::from_word<Enum>(word);
  }
}

template <typename Value>
Value from_text(const KnobFacts& knob, std::string_view given_as, const std::string& text) {
  if constexpr (std::is_same_v<Value, std::string>) {
    return text;
  } else if constexpr (std::is_same_v<Value, bool>) {
    if (text != "on" && text != "off") fail_word(given_as, text, {"on", "off"});
    return text == "on";
  } else if constexpr (std::is_enum_v<Value>) {
    const std::optional<Value> value = from_word<Value>(text);
    if constexpr (std::is_same_v<Value, Precision>) {
      if (text == "nf4" || text == "int4" || text == "int8") {
        throw Error(fmt::format(
            "{} is '{}', but layers multiply in one of {}; frozen weights of adapters in "
            "fewer bits are --quantize nf4, int8 or fp8",
            given_as, text, fmt::join(words_for<Value>(), ", ")));
      }
    }
    if (!value) fail_word(given_as, text, words_for<Value>());
    return *value;
  } else if constexpr (std::is_same_v<Value, double>) {
    constexpr double kLeast = 1e-3, kMost = 1e6;
    return parse_number(given_as, text, {kLeast, kMost});
  } else {
    return static_cast<Value>(parse_count(given_as, text, knob.range));
  }
}

template <typename Value>
std::string to_text(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(name_of(value));
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value ? "on" : "off";
  } else {
    return fmt::format("{}", value);
  }
}

template <typename Value>
Value from_key(const KnobFacts& knob, const JsonReader& object, std::string_view key) {
  if constexpr (std::is_enum_v<Value>) {
    const std::optional<Value> value = from_word<Value>(object.require<std::string>(key));
    const std::vector<std::string> words = words_for<Value>();
    if (!value) {
      object.fail(key, fmt::format("{}{}", words.size() == 2 ? "" : "one of ",
                                   fmt::join(words, words.size() == 2 ? " or " : ", ")));
    }
    return *value;
  } else if constexpr (std::is_same_v<Value, bool> || std::is_same_v<Value, std::string>) {
    return object.require<Value>(key);
  } else if constexpr (std::is_same_v<Value, double>) {
    return object.require<double>(key, NumberRange<double>(0, 1e6, true));
  } else {
    return object.require<Value>(key, at_least<Value>(knob.is(kZeroInFile) ? 0 : 1));
  }
}

template <typename Value>
Value from_cell(const KnobFacts& knob, const CsvRow& row) {
  const std::string_view text = row.text(knob.column);
  if constexpr (std::is_same_v<Value, std::string>) {
    return std::string(text);
  } else if constexpr (std::is_same_v<Value, bool>) {
    if (text != "0" && text != "1") row.fail(knob.column, "1, 0 or nothing");
    return text == "1";
  } else if constexpr (std::is_enum_v<Value>) {
    const std::optional<Value> value = from_word<Value>(text);
    if (!value)
      row.fail(knob.column, fmt::format("one of {}", fmt::join(words_for<Value>(), ", ")));
    return *value;
  } else {
    const auto value = row.require<Value>(knob.column);
    if (value < knob.range.least || value > knob.range.most) {
      row.fail(knob.column, fmt::format("a whole number {}", range_text(knob.range)));
    }
    return value;
  }
}

template <typename T>
struct Bare {
  using Type = T;
};
template <typename T>
struct Bare<std::optional<T>> {
  using Type = T;
};

/// The field of a plan, or of what was given, in whichever of their parts it stands.
template <typename Whole, typename Part, typename T>
auto& field(Whole& whole, T Part::*member) {
  if constexpr (std::is_same_v<Part, Numerics>) {
    return whole.numerics.*member;
  } else if constexpr (std::is_same_v<Part, Parallelism> ||
                       std::is_same_v<Part, GivenParallelism>) {
    return whole.parallel.*member;
  } else {
    return whole.*member;
  }
}

template <typename Part, typename T>
constexpr bool divides(T Part::*) {
  return std::is_same_v<Part, Parallelism> || std::is_same_v<Part, Numerics>;
}

inline std::string key_of(std::string_view name) {
  std::string key(name);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

/// Type and description that follow from the type of the value.
template <typename Value>
void describe(KnobFacts& facts) {
  if constexpr (std::is_enum_v<Value>) {
    const std::vector<std::string> words = words_for<Value>();
    if (words.size() > 2) {
      facts.what += fmt::format("{}{}", facts.what.empty() ? "" : ": ", fmt::join(words, ", "));
    }
    if (facts.type.empty())
      facts.type = words.size() > 2 ? "NAME" : fmt::format("{}", fmt::join(words, "|"));
  } else if (facts.type.empty()) {
    facts.type = std::is_same_v<Value, bool> ? "on|off" : std::is_same_v<Value, double> ? "X" : "N";
  }
}

/// A row about `InPlan`, a field of Plan, Parallelism or Numerics. `Given`: where GivenKnobs or
/// GivenParallelism keeps it; without one no flag gives it.
template <auto InPlan, auto Given = nullptr>
PlanKnob make_knob(KnobFacts described) {
  using Field = std::decay_t<decltype(field(std::declval<Plan&>(), InPlan))>;
  using Value = typename Bare<Field>::Type;
  constexpr bool optional = !std::is_same_v<Field, Value>;
  const auto value_of = [](const Plan& plan) -> const Value* {
    const Field& value = field(plan, InPlan);
    if constexpr (optional) {
      return value ? &*value : nullptr;
    } else {
      return &value;
    }
  };
  const KnobFacts facts = described;
  const auto hidden = [facts](const Plan& plan, KnobTraits says) {
    static const Plan usual;
    if (!optional && facts.is(says)) return false;
    return field(plan, InPlan) == field(usual, InPlan);
  };
  describe<Value>(described);
  PlanKnob knob{std::move(described)};
  knob.divides = divides(InPlan);
  knob.from_file = [facts](const JsonReader& object, Plan& plan) {
    const std::string key = key_of(facts.name);
    if (object.has(key)) field(plan, InPlan) = from_key<Value>(facts, object, key);
  };
  knob.to_file = [=](const Plan& plan, nlohmann::ordered_json& object) {
    if (hidden(plan, kFileSays)) return;
    const std::string key = key_of(facts.name);
    if constexpr (std::is_enum_v<Value>) {
      put(object, key, std::string(name_of(*value_of(plan))));
    } else if constexpr (std::is_same_v<Value, int>) {
      put(object, key, std::int64_t{*value_of(plan)});
    } else {
      put(object, key, *value_of(plan));
    }
  };
  if constexpr (!std::is_same_v<decltype(Given), std::nullptr_t>) {
    knob.read = [facts](GivenKnobs& knobs, std::string_view given_as, const std::string& text) {
      field(knobs, Given) = from_text<Value>(facts, given_as, text);
    };
    knob.take = [](const GivenKnobs& knobs, Plan& plan) {
      if (const auto& given = field(knobs, Given)) field(plan, InPlan) = *given;
    };
    knob.write = [=](const Plan& plan) {
      return hidden(plan, kTextSays) ? std::string() : to_text(*value_of(plan));
    };
  }
  if constexpr (!std::is_same_v<Value, double>) {
    knob.from_row = [facts](const CsvRow& row, Plan& plan) {
      if (row.text(facts.column).empty() && !facts.is(kFilled)) return;
      field(plan, InPlan) = from_cell<Value>(facts, row);
    };
  }
  return knob;
}

}  // namespace shardwright::knob_forms
