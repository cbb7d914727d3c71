// SPDX-License-Identifier: Apache-2.0
#include "sim/core/attention_form.h"

#include <fmt/core.h>

#include <array>

namespace shardwright {
namespace {

constexpr std::array<std::string_view, kAttentionForms> kAttentionFormNames = {
    "cudnn", "cudnn-ordered", "flash", "naive"};
constexpr std::int64_t kHeadVector = 8;  // bf16 numbers in 16 bytes
constexpr std::int64_t kUsualHead = 128, kWidestHead = 256;

std::string cudnn_refusal(const AttentionNeeds& needs) {
  if (needs.dtype != DType::kBf16) return "takes bf16, not fp32";
  if (needs.documents) return "cannot mask packed documents";
  if (needs.head_dim % kHeadVector != 0 || needs.head_dim > kWidestHead) {
    return fmt::format("takes head sizes that are multiples of {} up to {}, not {}", kHeadVector,
                       kWidestHead, needs.head_dim);
  }
  if (needs.head_dim > kUsualHead && !needs.has_wide_engine) {
    return fmt::format("has no engine on this GPU for heads of {}", needs.head_dim);
  }
  return {};
}

std::string flash_refusal(const AttentionNeeds& needs) {
  if (needs.dtype != DType::kBf16) return "takes bf16, not fp32";
  if (needs.head_dim != 64 && needs.head_dim != 128) {
    return fmt::format("takes head sizes 64 and 128, not {}", needs.head_dim);
  }
  if (!needs.plain_scores) return "takes scores without cap or slope";
  return {};
}

}  // namespace

std::string_view name_of(AttentionForm form) {
  return kAttentionFormNames[static_cast<std::size_t>(form)];
}

bool has_wide_attention_engine(std::string_view architecture) {
  return architecture == "hopper";
}

std::string attention_refusal(AttentionForm form, const AttentionNeeds& needs) {
  switch (form) {
    case AttentionForm::kCudnn:
      if (needs.deterministic) return "does not repeat to the bit";
      [[fallthrough]];
    case AttentionForm::kCudnnOrdered:
      return cudnn_refusal(needs);
    case AttentionForm::kFlash:
      return flash_refusal(needs);
    case AttentionForm::kNaive:
      break;
  }
  return needs.head_dim <= kWidestHead ? std::string()
                                       : fmt::format("takes heads of at most {} numbers, not {}",
                                                     kWidestHead, needs.head_dim);
}

AttentionForm attention_form(const AttentionNeeds& needs) {
  for (int i = 0; i + 1 < kAttentionForms; ++i) {
    const auto form = static_cast<AttentionForm>(i);
    if (attention_refusal(form, needs).empty()) return form;
  }
  return AttentionForm::kNaive;
}

}  // namespace shardwright
