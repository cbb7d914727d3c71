// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/product_choices.h"

#include <fmt/core.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "exec/cuda/cuda_device.h"
#include "exec/executor.h"

namespace shardwright::exec::cuda {
namespace {

/// The text of one rank, on all of them.
std::string broadcast_text(Communicator& world, std::string text, std::int64_t from) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto root = static_cast<std::size_t>(from);
  std::vector<std::uint64_t> sizes(ranks);
  const std::uint64_t mine = text.size();
  world.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(sizes)));
  text.resize(sizes[root]);
  std::string all(ranks * text.size(), '\0');
  world.exchange(std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)));
  return all.substr(root * text.size(), text.size());
}

/// The products of this rank's step: timed where `known` has them not.
ProductChoices time_products(Executor& executor, CudaDevice& device, const Batch& batch,
                             const ProductChoices& known) {
  device.products().use(known.choices);
  // Products of zeros take little power, so that the clock is not that of a step; the rehearsal
  // forgets these weights again.
  constexpr std::uint64_t kAnySeed = 1;
  executor.initialize(kAnySeed);
  device.products().time_choices(true);
  executor.rehearse_alone(batch);
  device.products().time_choices(false);
  return {known.release, known.gpu, device.products().choices()};
}

}  // namespace

ProductChoices agree_on_products(Executor& executor, CudaDevice& device, const Batch& batch,
                                 const std::string& gpu, std::span<const ProductChoices> known) {
  const auto from_rank = [&](std::int64_t rank, const auto& choose) {
    std::string text;
    if (executor.world().rank() == rank) text = to_json(choose());
    return product_choices_from(broadcast_text(executor.world(), std::move(text), rank),
                                fmt::format("rank {}'s choices", rank));
  };
  ProductChoices agreed{Products::library_version(), gpu, {}};
  const ProductChoices usable = from_rank(0, [&] {
    ProductChoices all = agreed;
    for (const ProductChoices& one : known) {
      if (one.same_place(all)) all.add(one);
    }
    return all;
  });
  // Ranks of a stage multiply the same shapes.
  for (const std::int64_t rank : executor.first_ranks_of_stages()) {
    agreed.add(from_rank(rank, [&] {
      ProductChoices met = agreed;
      met.add(usable);
      return time_products(executor, device, batch, met);
    }));
  }
  device.products().use(agreed.choices);
  return agreed;
}

}  // namespace shardwright::exec::cuda
