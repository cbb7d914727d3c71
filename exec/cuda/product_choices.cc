// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/product_choices.h"

#include <fmt/core.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "exec/cuda/cuda_device.h"
#include "exec/executor.h"
#include "sim/core/json_file.h"
#include "sim/core/schema.h"

namespace shardwright::exec::cuda {
namespace {

constexpr std::string_view kSchema = "shardwright.products";
constexpr int kMajor = 1;

/// Rank 0's text, on all ranks.
std::string broadcast_text(Communicator& world, std::string text) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::uint64_t> sizes(ranks);
  const std::uint64_t mine = text.size();
  world.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(sizes)));
  text.resize(sizes.front());
  std::string all(ranks * text.size(), '\0');
  world.exchange(std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)));
  return all.substr(0, text.size());
}

}  // namespace

std::string to_json(const ProductChoices& choices) {
  nlohmann::ordered_json root = {{"schema", fmt::format("{}/{}.0", kSchema, kMajor)},
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

ProductChoices product_choices_from(std::string_view text, const std::string& file) {
  const JsonFile document = JsonFile::parse(text, file);
  const JsonReader root = document.root();
  require_schema(root, kSchema, kMajor);
  ProductChoices result;
  result.release = root.require<std::string>("library");
  result.gpu = root.require<std::string>("gpu");
  for (const JsonReader& entry : root.require_array("products")) {
    ProductChoice& choice = result.choices.emplace_back();
    choice.product = entry.require<std::string>("product");
    choice.place = static_cast<std::int32_t>(entry.require<std::int64_t>(
        "algorithm", between<std::int64_t>(0, Products::kMostCandidates - 1)));
    choice.seconds = entry.require<double>("seconds", at_least(0.0));
    choice.first_s = entry.require<double>("first_s", at_least(0.0));
  }
  return result;
}

ProductChoices agree_on_products(Executor& executor, CudaDevice& device, const Batch& batch,
                                 const std::string& gpu, const ProductChoices& known) {
  ProductChoices mine{Products::library_version(), gpu, {}};
  std::string text;
  if (executor.world().rank() == 0) {
    if (known.release == mine.release && known.gpu == gpu) device.products().use(known.choices);
    device.products().time_choices(true);
    executor.rehearse_alone(batch);
    device.products().time_choices(false);
    mine.choices = device.products().choices();
    text = to_json(mine);
  }
  const ProductChoices agreed =
      product_choices_from(broadcast_text(executor.world(), std::move(text)), "rank 0's choices");
  device.products().use(agreed.choices);
  return agreed;
}

}  // namespace shardwright::exec::cuda
