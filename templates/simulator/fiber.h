// A thread of a block as a stack of its own: entered by the block's scheduler, left at every wait.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#if !defined(__x86_64__) || !defined(__linux__)
#define PAGEGEN_UCONTEXT 1  // slower by a system call, and everywhere
#endif
#ifdef PAGEGEN_UCONTEXT
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simulator {

#ifndef PAGEGEN_UCONTEXT
// Saves the registers that a call must keep, trades stacks, and restores those of the other side.
extern "C" void pagegen_trade_stacks(void** left, void* entered);
asm(R"(
.text
.p2align 4
.hidden pagegen_trade_stacks
.weak pagegen_trade_stacks
.type pagegen_trade_stacks,@function
pagegen_trade_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#endif

// Memory for one fiber, below which lies a page that must not be touched.
class Stack {
 public:
  static constexpr std::size_t BYTES = 512 * 1024;  // touched pages only are real

  Stack() {
    void* memory = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    bottom_ = static_cast<unsigned char*>(memory);
    mprotect(bottom_, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
  }
  ~Stack() { munmap(bottom_, BYTES); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  unsigned char* bottom() const { return bottom_; }
  unsigned char* top() const { return bottom_ + BYTES; }
  bool holds(std::uintptr_t address) const {
    return address - reinterpret_cast<std::uintptr_t>(bottom_) < BYTES;
  }

 private:
  unsigned char* bottom_;
};

class Fiber {
 public:
  static constexpr std::size_t POISONED = 16 * 1024;  // of the stack, more than a kernel's frame

  // `entry` must not return: it leaves for good.
  void prepare(Stack& stack, void (*entry)()) {
    stack_ = &stack;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stack.top() - POISONED, POISONED);  // the last thread's frames
#endif
    // What a kernel's own variables hold before it sets them: NaN in every format, and a large
    // number.
    std::fill_n(reinterpret_cast<std::uint16_t*>(stack.top() - POISONED), POISONED / 2, 0x7ffe);
#ifdef PAGEGEN_UCONTEXT
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack.bottom();
    inside_.uc_stack.ss_size = Stack::BYTES;
    inside_.uc_link = nullptr;
    makecontext(&inside_, entry, 0);
#else
    void** top = reinterpret_cast<void**>(stack.top());
    for (int i = 1; i <= 8; ++i) top[-i] = nullptr;
    top[-2] = reinterpret_cast<void*>(entry);  // below six saved registers
    inside_ = top - 8;
#endif
  }

  // Runs the fiber until it leaves.
  void enter() {
#ifdef __SANITIZE_ADDRESS__
    void* kept = nullptr;
    __sanitizer_start_switch_fiber(&kept, stack_->bottom(), Stack::BYTES);
#endif
#ifdef PAGEGEN_UCONTEXT
    swapcontext(&outside_, &inside_);
#else
    pagegen_trade_stacks(&outside_, inside_);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#endif
  }

  // Back to where the fiber was entered from; returns when it is entered again.
  void leave() {
#ifdef __SANITIZE_ADDRESS__
    void* kept = nullptr;
    __sanitizer_start_switch_fiber(&kept, outside_bottom_, outside_bytes_);
#endif
#ifdef PAGEGEN_UCONTEXT
    swapcontext(&inside_, &outside_);
#else
    pagegen_trade_stacks(&inside_, outside_);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(kept, &outside_bottom_, &outside_bytes_);
#endif
  }

  // To be called first on the fiber's own stack.
  void begin() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &outside_bottom_, &outside_bytes_);
#endif
  }

  const Stack& stack() const { return *stack_; }

 private:
  Stack* stack_ = nullptr;
#ifdef PAGEGEN_UCONTEXT
  ucontext_t inside_, outside_;
#else
  void* inside_ = nullptr;
  void* outside_ = nullptr;
#endif
#ifdef __SANITIZE_ADDRESS__
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
#endif
};

}  // namespace simulator
