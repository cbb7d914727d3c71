// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/support/ptx/machine.h"

namespace ptx {
namespace {

/// A kernel that stores %r1 of every thread, run with one block of `threads`.
std::vector<std::uint32_t> stored(const std::string& body, std::uint32_t threads = 32) {
  const std::string text = R"(
.version 9.0
.entry k(
	.param .u64 k_param_0
)
{
	.reg .pred %p<9>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.shared .align 4 .b8 words[128];
	mov.u32 %r9, %tid.x;
)" + body + R"(
	ld.param.u64 %rd1, [k_param_0];
	cvta.to.global.u64 %rd1, %rd1;
	mul.wide.u32 %rd2, %r9, 4;
	add.s64 %rd1, %rd1, %rd2;
	st.global.u32 [%rd1], %r1;
	ret;
})";
  std::vector<std::uint32_t> out(threads);
  Launch launch;
  launch.block.x = threads;
  const std::span<std::byte> memory = std::as_writable_bytes(std::span(out));
  launch.global = {memory};
  std::byte* address = memory.data();
  launch.arguments.emplace_back(sizeof address);
  std::memcpy(launch.arguments[0].data(), &address, sizeof address);
  std::vector<bool> executed;
  run(parse(text).at("k"), launch, executed);
  return out;
}

std::string refusal(const std::string& body, std::uint32_t threads = 32) {
  try {
    stored(body, threads);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

std::vector<std::uint32_t> lanes() {
  std::vector<std::uint32_t> result(32);
  std::iota(result.begin(), result.end(), 0u);
  return result;
}

TEST(PtxInterpreter, LanesThatPartMeetAgain) {
  const auto result = stored(R"(
	mov.u32 %r1, 0;
$AGAIN:
	setp.ge.u32 %p1, %r1, %r9;
	@%p1 bra $END;
	add.s32 %r1, %r1, 1;
	bra.uni $AGAIN;
$END:
	shfl.sync.bfly.b32 %r1|%p2, %r1, 1, 31, -1;)");
  for (std::uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(result[lane], lane ^ 1);
}

TEST(PtxInterpreter, ShufflesKeepTheirOwnValueOutsideTheSegment) {
  auto expected = lanes();
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    if (lane % 8 >= 3) expected[lane] = lane - 3;
  }
  EXPECT_EQ(stored("shfl.sync.up.b32 %r1|%p1, %r9, 3, 6144, -1;"), expected);
  for (std::uint32_t lane = 0; lane < 32; ++lane) expected[lane] = lane / 8 * 8 + 5;
  EXPECT_EQ(stored("shfl.sync.idx.b32 %r1, %r9, 5, 6175, -1;"), expected);
}

TEST(PtxInterpreter, PacksAndUnpacksWithTheLowestBitsFirst) {
  const auto result = stored(R"(
	{ .reg .b16 %rs1, %rs2; mov.b32 {%rs1, %rs2}, %r9; mov.b32 %r1, {%rs2, %rs1}; })");
  EXPECT_EQ(result[5], 5u << 16);
  EXPECT_EQ(stored("bfi.b32 %r1, %r9, 15, 8, 4;")[3], 15u | 3u << 8);
  // Selectors 0x9c40: byte 0 of the first, of the second, its sign, the first's sign of byte 1.
  EXPECT_EQ(stored("prmt.b32 %r1, %r9, 128, 40000;")[1], 0x00ff8001u);
}

TEST(PtxInterpreter, RefusesAnOpcodeItDoesNotKnowByName) {
  EXPECT_THAT(refusal("popc.b32 %r1, %r9;"), ::testing::HasSubstr("'popc.b32' is not known"));
  EXPECT_THAT(refusal("ld.const.u32 %r1, [%rd1];"), ::testing::HasSubstr("'ld.const.u32'"));
  EXPECT_THAT(refusal("mov.u32 %r1, %clock.x;"), ::testing::HasSubstr("'%clock.x'"));
}

TEST(PtxInterpreter, RefusesThreadsThatNeverCome) {
  EXPECT_THAT(refusal("setp.eq.u32 %p1, %r9, 40; @%p1 ret; bar.sync 0;", 64),
              ::testing::HasSubstr("63 of 64 threads wait at a barrier"));
  EXPECT_THAT(refusal("setp.lt.u32 %p1, %r9, 7; @%p1 ret; bar.warp.sync -1;"),
              ::testing::HasSubstr("wants one that has ended"));
  EXPECT_THAT(refusal("shfl.sync.idx.b32 %r1, %r9, 9, 31, 255;"),
              ::testing::HasSubstr("leaves out"));
  EXPECT_THAT(refusal("$L: bra.uni $L;"), ::testing::HasSubstr("on and on"));
}

TEST(PtxInterpreter, RefusesAddressesOutsideMemory) {
  EXPECT_THAT(refusal("st.shared.u32 [words+128], %r9;"), ::testing::HasSubstr("byte 128 of 128"));
  EXPECT_THAT(refusal("st.shared.u32 [words+2], %r9;"), ::testing::HasSubstr("multiple of 4"));
  EXPECT_THAT(refusal("mov.u64 %rd3, 4096; ld.global.u32 %r1, [%rd3];"),
              ::testing::HasSubstr("nobody allocated"));
}

TEST(PtxInterpreter, CopiesArriveWhenTheyAreWaitedFor) {
  const std::string begin = R"(
	ld.param.u64 %rd1, [k_param_0];
	mov.u32 %r2, words;
	setp.ne.u32 %p1, %r9, 0;
	mov.u32 %r3, 7;
	st.global.u32 [%rd1], %r3;
	@!%p1 cp.async.cg.shared.global [%r2], [%rd1], 16, 16;
	cp.async.commit_group;)";
  const std::string end = "bar.warp.sync -1; ld.shared.u32 %r1, [words];";
  EXPECT_EQ(stored(begin + "cp.async.wait_group 0;" + end)[3], 7u);
  EXPECT_EQ(stored(begin + "cp.async.wait_group 1;" + end)[3], 0x7fa17fa1u);
}

}  // namespace
}  // namespace ptx
