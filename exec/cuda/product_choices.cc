// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/product_choices.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "exec/cuda/cuda_device.h"
#include "exec/executor.h"

namespace shardwright::exec::cuda {
namespace {

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

ProductChoices agree_on_products(Executor& executor, CudaDevice& device, const Batch& batch,
                                 const std::string& gpu, std::span<const ProductChoices> known) {
  ProductChoices mine{Products::library_version(), gpu, {}};
  std::string text;
  if (executor.world().rank() == 0) {
    ProductChoices usable = mine;
    for (const ProductChoices& one : known) {
      if (one.same_place(mine)) usable.add(one);
    }
    device.products().use(usable.choices);
    // Products of zeros take little power, so that the clock is not that of a step; the rehearsal
    // forgets these weights again.
    constexpr std::uint64_t kAnySeed = 1;
    executor.initialize(kAnySeed);
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
