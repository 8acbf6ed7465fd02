#include "loader/sending.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

// What the thread did to an outlet, and what it is told of it. Any thread.
class Log {
 public:
  void Add(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    did_.push_back(what);
    changed_.notify_all();
  }
  // Waits until so much was done.
  std::string Until(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return did_.size() >= count; });
    return absl::StrJoin(did_, ", ");
  }
  void SetReading(bool reading) {
    std::lock_guard<std::mutex> lock(mutex_);
    reading_ = reading;
  }
  bool reading() {
    std::lock_guard<std::mutex> lock(mutex_);
    return reading_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> did_;
  bool reading_ = false;
};

class FakeOutlet : public Outlet {
 public:
  explicit FakeOutlet(Log* log) : log_(log) {}
  void Start(const Order& order) override {
    log_->SetReading(true);
    log_->Add(absl::StrCat("start ", order.send.generation));
  }
  void Drop(std::optional<int> engine, std::optional<int> worker) override {
    log_->SetReading(false);
    log_->Add(absl::StrCat("drop ", engine.value_or(-1), " ", worker.value_or(-1)));
  }
  absl::Status Progress(absl::Duration) override { return absl::OkStatus(); }
  void Wake() override {}
  size_t active() const override { return log_->reading() ? 1 : 0; }
  bool polled() const override { return false; }
  bool Reads(int slot) const override { return slot == 1 && log_->reading(); }
  int64_t peak_staging_bytes() const override { return 7; }

 private:
  Log* const log_;
};

Outlet::Order Of(uint64_t generation) {
  Outlet::Order order;
  order.send.generation = generation;
  return order;
}

TEST(SendingTest, DoesWhatItIsToldInOrderAndSaysWhenItIsIdle) {
  Log log;
  std::mutex mutex;
  std::condition_variable changed;
  int settled = 0;
  Sending sending(
      std::make_unique<FakeOutlet>(&log),
      [&] {
        std::lock_guard<std::mutex> lock(mutex);
        ++settled;
        changed.notify_all();
      },
      [](const absl::Status&) {});
  EXPECT_TRUE(sending.IsIdle(0));
  sending.Start(Of(1));
  sending.Drop(2, 3);
  sending.Start(Of(2));
  EXPECT_EQ(log.Until(3), "start 1, drop 2 3, start 2");
  // It reads slot 1 alone, until it drops that.
  const auto await_idle = [&](int slot) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return sending.IsIdle(slot); });
  };
  await_idle(0);
  EXPECT_FALSE(sending.IsIdle(1));
  sending.Drop();
  await_idle(1);
  EXPECT_EQ(log.Until(4), "start 1, drop 2 3, start 2, drop -1 -1");
  EXPECT_EQ(sending.peak_staging_bytes(), 7);
  sending.Stop();
  sending.Stop();
}

// One whose transport wants to be polled, and has no news: it goes on only when it is woken.
class QuietOutlet : public FakeOutlet {
 public:
  using FakeOutlet::FakeOutlet;
  bool polled() const override { return true; }
  absl::Status Progress(absl::Duration) override {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return std::exchange(woken_, false); });
    return absl::OkStatus();
  }
  void Wake() override {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = true;
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
};

TEST(SendingTest, WhatItIsToldWaitsForNoTurn) {
  Log log;
  Sending sending(
      std::make_unique<QuietOutlet>(&log), [] {}, [](const absl::Status&) {});
  sending.Start(Of(3));
  EXPECT_EQ(log.Until(1), "start 3");
  sending.Drop();
  EXPECT_EQ(log.Until(2), "start 3, drop -1 -1");
}

// Its bytes cannot be read once it has begun.
class FailingOutlet : public FakeOutlet {
 public:
  using FakeOutlet::FakeOutlet;
  absl::Status Progress(absl::Duration) override {
    return active() > 0 ? absl::UnavailableError("no bytes") : absl::OkStatus();
  }
};

TEST(SendingTest, AnOutletThatFailsIsDroppedAndTold) {
  Log log;
  Sending sending(
      std::make_unique<FailingOutlet>(&log), [] {},
      [&](const absl::Status& failed) { log.Add(std::string(failed.message())); });
  sending.Start(Of(3));
  EXPECT_EQ(log.Until(3), "start 3, drop -1 -1, no bytes");
}

}  // namespace
}  // namespace headrace
