// SPDX-License-Identifier: Apache-2.0
// How the value of a knob is read and written, by its type: for knob_table.cc alone.
//
// make_knob ties a row to a field of Plan and to the one of GivenKnobs: from their types follow the
// five ways in and out. A row that is said otherwise somewhere replaces that way.
#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
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
#include "sim/core/plan_knobs.h"

namespace shardwright::knob_forms {

using JsonValue = std::variant<bool, std::int64_t, double, std::string>;
void put(nlohmann::ordered_json& object, const std::string& key, const JsonValue& value);

/// The words of an enumeration, and the value of one of them.
template <typename Enum>
std::vector<std::string> words_for() {
  if constexpr (std::is_same_v<Enum, DType>) {
    return {"fp32", "bf16"};
  } else if constexpr (std::is_same_v<Enum, AttentionKind>) {
    return {"flash", "eager"};
  } else if constexpr (std::is_same_v<Enum, AllocatorKind>) {
    return {"native", "expandable"};
  } else if constexpr (std::is_same_v<Enum, Strategy>) {
    return strategy_names();
  } else {
    std::string joined = words_of<Enum>();
    std::erase(joined, ' ');
    return split_commas(joined);
  }
}

template <typename Enum>
std::optional<Enum> from_word(std::string_view word) {
  if constexpr (std::is_same_v<Enum, DType>) {
    return dtype_from(word);
  } else if constexpr (std::is_same_v<Enum, AttentionKind>) {
    return attention_from(word);
  } else if constexpr (std::is_same_v<Enum, AllocatorKind>) {
    return allocator_from(word);
  } else if constexpr (std::is_same_v<Enum, Strategy>) {
    return strategy_from(word);
  } else {
    return parallel_word<Enum>(word);
  }
}

/// What reading and writing a row ask of it: each of its ways has a copy.
struct RowFacts {
  std::string_view name, column;
  unsigned traits;
  CountRange range;

  explicit RowFacts(const KnobFacts& knob)
      : name(knob.name), column(knob.column), traits(knob.traits), range(knob.range) {}
  bool is(KnobTraits trait) const { return (traits & trait) != 0; }
};

template <typename Value>
Value from_text(const RowFacts& knob, std::string_view given_as, const std::string& text) {
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
Value from_key(const RowFacts& knob, const JsonReader& object, std::string_view key) {
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
Value from_cell(const RowFacts& knob, const CsvRow& row) {
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
  const RowFacts facts(described);
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
