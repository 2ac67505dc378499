// The libssl that Python's ssl module uses, and the functions of it that TLS records need.
//
// Contexts, certificates and handshakes stay with the ssl module. The module does not expose its SSL objects. But OpenSSL
// calls a registered function for every SSL that it makes (CRYPTO_get_ex_new_index(3)). In this way the SSL of a socket is
// found without a look into Python's structures. A Python that contains a libssl of its own never makes this call, and
// then `tls/session.hpp` is not used.
#pragma once

#include <dlfcn.h>

#include <cstddef>

struct ssl_st;  // OpenSSL's SSL and BIO; both are opaque here
struct bio_st;
struct bio_method_st;

namespace echo_tcp {

using Ssl = ssl_st;
using Bio = bio_st;

// The SSL that OpenSSL made last on this thread, as long as it exists.
inline thread_local Ssl* latest_ssl = nullptr;

struct Libssl {
    // OpenSSL 1.1.1 and 3 have all of these, with these types.
    int (*up_ref)(Ssl*);
    void (*release)(Ssl*);
    int (*descriptor)(const Ssl*);
    int (*read)(Ssl*, void*, std::size_t, std::size_t*);
    int (*write)(Ssl*, const void*, std::size_t, std::size_t*);
    int (*error_of)(const Ssl*, int);
    Bio* (*rbio)(const Ssl*);
    void (*set_bio)(Ssl*, Bio*, Bio*);
    Bio* (*bio_new)(const bio_method_st*);
    int (*bio_up_ref)(Bio*);
    Bio* (*bio_push)(Bio*, Bio*);
    long (*bio_int_ctrl)(Bio*, int, long, int);
    long (*bio_ctrl)(Bio*, int, long, void*);
    int (*bio_flags)(const Bio*, int);
    const bio_method_st* (*buffering)();
    void (*forget_errors)();
    unsigned long (*next_error)();
    const char* (*reason_of)(unsigned long);

    // Null if the libssl of Python's ssl module cannot be reached.
    static const Libssl* found() {
        static const Libssl* const only = find();
        return only;
    }

private:
    static void born(void* parent, void*, void*, int, long, void*) { latest_ssl = static_cast<Ssl*>(parent); }
    static void died(void* parent, void*, void*, int, long, void*) {
        if (latest_ssl == parent) latest_ssl = nullptr;
    }

    template <class Function>
    static bool get(void* library, const char* name, Function& function) {
        function = reinterpret_cast<Function>(::dlsym(library, name));  // also finds functions of its dependencies (libcrypto)
        return function != nullptr;
    }

    static const Libssl* find() {
        static Libssl lib;
        using Told = void (*)(void*, void*, void*, int, long, void*);
        for (const char* name : {"libssl.so.3", "libssl.so.1.1"}) {
            // Takes only a library that is already loaded: another one could not use objects of the ssl module's library.
            void* const library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
            if (library == nullptr) continue;
            int (*register_for)(int, long, void*, Told, void*, Told) = nullptr;
            const bool whole = get(library, "CRYPTO_get_ex_new_index", register_for) && get(library, "SSL_up_ref", lib.up_ref) &&
                               get(library, "SSL_free", lib.release) && get(library, "SSL_get_fd", lib.descriptor) &&
                               get(library, "SSL_read_ex", lib.read) && get(library, "SSL_write_ex", lib.write) &&
                               get(library, "SSL_get_error", lib.error_of) && get(library, "SSL_get_rbio", lib.rbio) &&
                               get(library, "SSL_set_bio", lib.set_bio) && get(library, "BIO_new", lib.bio_new) &&
                               get(library, "BIO_up_ref", lib.bio_up_ref) && get(library, "BIO_push", lib.bio_push) &&
                               get(library, "BIO_int_ctrl", lib.bio_int_ctrl) && get(library, "BIO_ctrl", lib.bio_ctrl) &&
                               get(library, "BIO_test_flags", lib.bio_flags) && get(library, "BIO_f_buffer", lib.buffering) &&
                               get(library, "ERR_clear_error", lib.forget_errors) && get(library, "ERR_get_error", lib.next_error) &&
                               get(library, "ERR_reason_error_string", lib.reason_of);
            constexpr int of_ssl = 0;  // CRYPTO_EX_INDEX_SSL
            if (whole && register_for(of_ssl, 0, nullptr, born, nullptr, died) >= 0) return &lib;
        }
        return nullptr;
    }
};

}  // namespace echo_tcp
