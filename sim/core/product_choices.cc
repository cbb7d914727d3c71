// SPDX-License-Identifier: Apache-2.0
#include "sim/core/product_choices.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "sim/core/base/json_file.h"

namespace shardwright {

namespace {

constexpr std::string_view kProductsSchema = "shardwright.products";
constexpr int kProductsMajor = 1;

}  // namespace

void ProductChoices::add(const ProductChoices& other) {
  std::set<std::string_view> known;
  for (const ProductChoice& choice : choices) known.insert(choice.product);
  std::vector<ProductChoice> more;
  for (const ProductChoice& choice : other.choices) {
    if (!known.contains(choice.product)) more.push_back(choice);
  }
  choices.insert(choices.end(), more.begin(), more.end());
}

std::string to_json(const ProductChoices& choices) {
  nlohmann::ordered_json root = {
      {"schema", fmt::format("{}/{}.0", kProductsSchema, kProductsMajor)},
      {"library", choices.release},
      {"gpu", choices.gpu},
      {"products", nlohmann::ordered_json::array()}};
  for (const ProductChoice& choice : choices.choices) {
    root["products"].push_back({{"product", choice.product},
                                {"algorithm", choice.place},
                                {"seconds", choice.seconds},
                                {"first_s", choice.first_s}});
  }
  return root.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

ProductChoices read_product_choices(const JsonReader& root) {
  require_schema(root, kProductsSchema, kProductsMajor);
  ProductChoices result;
  result.release = root.require<std::string>("library");
  result.gpu = root.require<std::string>("gpu");
  for (const JsonReader& entry : root.require_array("products")) {
    ProductChoice& choice = result.choices.emplace_back();
    choice.product = entry.require<std::string>("product");
    choice.place = static_cast<std::int32_t>(entry.require<std::int64_t>(
        "algorithm", between<std::int64_t>(0, kMostProductCandidates - 1)));
    choice.seconds = entry.require<double>("seconds", at_least(0.0));
    choice.first_s = entry.require<double>("first_s", at_least(0.0));
  }
  return result;
}

ProductChoices product_choices_from(std::string_view text, const std::string& file) {
  return read_product_choices(JsonFile::parse(text, file).root());
}

}  // namespace shardwright
