#include "gate.h"

#include <chrono>
#include <thread>

#include "page.h"
#include "status.h"
#include "support.h"

namespace {

using ebb::Gate;
using ebb::Page;
using ebb_test::Folder;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

class GateTest : public testing::Test {
 protected:
  Folder folder_;
  std::unique_ptr<Page> page_ = Page::create(folder_.file("page"));
};

TEST_F(GateTest, TellsWhenTheLastRequestLeft) {
  Gate gate(*page_);
  page_->set_admission(true);
  EXPECT_TRUE(gate.enter());
  EXPECT_EQ(page_->get(EBB_F_LAST_REQUEST), 0U);
  const uint64_t before = now_ns();
  gate.leave();
  const uint64_t left = page_->get(EBB_F_LAST_REQUEST);
  EXPECT_GE(left, before);
  EXPECT_LE(left, now_ns());
  EXPECT_THROW(gate.leave(), ebb::Failure);
  EXPECT_EQ(page_->get(EBB_F_LAST_REQUEST), left) << "nobody left";
  page_->set_admission(false);
  EXPECT_FALSE(gate.enter());
  EXPECT_EQ(page_->get(EBB_F_LAST_REQUEST), left) << "nobody was inside";
}

TEST_F(GateTest, WhoSeesNobodyInsideSeesWhenTheLastOneLeft) {
  page_->set_admission(true);
  std::thread visitor([this] {
    Gate gate(*page_);
    for (uint64_t i = 1; i < 20000; ++i) {
      page_->set(EBB_F_LAST_REQUEST, 0);
      ASSERT_TRUE(gate.enter());
      page_->set(EBB_F_EPOCH, i);
      gate.leave();
      page_->set(EBB_F_EPOCH, 0);
    }
    page_->set(EBB_F_BOOT, 1);
  });
  while (page_->get(EBB_F_BOOT) == 0) {
    const uint64_t visit = page_->get(EBB_F_EPOCH);
    const bool empty = page_->inflight() == 0;
    const uint64_t left = page_->get(EBB_F_LAST_REQUEST);
    const bool same_visit = visit != 0 && page_->get(EBB_F_EPOCH) == visit;
    EXPECT_FALSE(same_visit && empty && left == 0) << visit;
  }
  visitor.join();
}

}  // namespace
