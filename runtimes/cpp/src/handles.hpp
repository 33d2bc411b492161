// Handles that can be validated: the index of a slot and its turn, which counts closes, encoded as a pointer. A closed or
// invalid handle is detected without dereferencing it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "error.hpp"

namespace t2r {

template <class T, class Handle> class Handles {
    struct Entry {
        std::unique_ptr<T> object;
        std::atomic_flag busy = ATOMIC_FLAG_INIT;
        bool closed = false;  // read and written while busy
    };

public:
    explicit Handles(const char *name) : name(name) {}

    Handle *add(std::unique_ptr<T> object) {
        auto entry = std::make_shared<Entry>();
        entry->object = std::move(object);
        const std::lock_guard<std::mutex> lock(mutex);
        std::size_t place = 0;
        while (place < slots.size() && (slots[place].entry || slots[place].turn >= last_turn)) place++;
        if (place == slots.size()) {
            if (place >= max_open) fail(T2R_MEMORY, "at most 4096 open handles of a kind", "more", "close those that are done");
            slots.emplace_back();
        }
        slots[place].entry = std::move(entry);
        return reinterpret_cast<Handle *>(((slots[place].turn << place_bits) | place) << 1 | 1);
    }

    // Exclusive use of the object until this goes out of scope. Throws Error of the kinds argument and state.
    class Use {
    public:
        Use(Handles &handles, Handle *handle) : entry(handles.find(handle)) {
            if (entry->busy.test_and_set(std::memory_order_acquire)) {
                entry.reset();
                fail(T2R_STATE, std::string("one call at a time in a ") + handles.name, "another, from a second thread or a callback",
                     "give each thread a handle of its own");
            }
            if (entry->closed) {  // by another thread, after the handle was found
                entry->busy.clear(std::memory_order_release);
                entry.reset();
                handles.fail_closed();
            }
        }
        ~Use() {
            if (entry) entry->busy.clear(std::memory_order_release);
        }
        Use(const Use &) = delete;
        Use &operator=(const Use &) = delete;
        T &operator*() const { return *entry->object; }
        T *operator->() const { return entry->object.get(); }

    private:
        friend class Handles;
        std::shared_ptr<Entry> entry;
    };

    // The object even if it is in use, for members that lock themselves. Throws Error as Use does if the handle is not open.
    std::shared_ptr<T> share(Handle *handle) {
        const std::shared_ptr<Entry> entry = find(handle);
        return {entry, entry->object.get()};
    }

    void close(Handle *handle) {
        const Use use(*this, handle);  // not during another call
        use.entry->closed = true;
        const std::lock_guard<std::mutex> lock(mutex);
        Slot &slot = slots[place_of(handle)];
        slot.entry.reset();
        slot.turn++;
    }

private:
    struct Slot {
        std::shared_ptr<Entry> entry;
        std::uintptr_t turn = 0;
    };
    static constexpr unsigned place_bits = 12;
    static constexpr std::size_t max_open = std::size_t{1} << place_bits;
    static constexpr std::uintptr_t last_turn = (~std::uintptr_t{0} >> (place_bits + 1)) - 1;

    static std::size_t place_of(Handle *handle) {
        return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(handle) >> 1 & (max_open - 1));
    }

    [[noreturn]] void fail_closed() const {
        fail(T2R_STATE, std::string("an open ") + name, "one that was closed, or never was one", "open it first, and close it last");
    }

    std::shared_ptr<Entry> find(Handle *handle) {
        if (!handle) fail(T2R_ARGUMENT, std::string("an open ") + name, "NULL", "open it first");
        const auto value = reinterpret_cast<std::uintptr_t>(handle);
        const std::lock_guard<std::mutex> lock(mutex);
        const std::size_t place = place_of(handle);
        const bool open = (value & 1) && place < slots.size() && slots[place].entry &&
                          slots[place].turn == value >> (place_bits + 1);
        if (!open) fail_closed();
        return slots[place].entry;
    }

    const char *name;
    std::mutex mutex;
    std::vector<Slot> slots;
};

}  // namespace t2r
