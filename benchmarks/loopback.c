/* A FUSE file system that shows a folder, and fails the second read of one file with EIO.
 *
 *     cc loopback.c -o loopback $(pkg-config fuse3 --cflags --libs)
 *     ./loopback FOLDER MOUNT_POINT -f -s
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *folder, *bad = "/bad.bin";
static int reads;

static const char *real(const char *path)
{
    static char found[PATH_MAX];
    snprintf(found, sizeof found, "%s%s", folder, path);
    return found;
}

static int get_attributes(const char *path, struct stat *found, struct fuse_file_info *file)
{
    (void)file;
    return lstat(real(path), found) ? -errno : 0;
}

static int open_file(const char *path, struct fuse_file_info *file)
{
    int descriptor = open(real(path), file->flags);
    if (descriptor < 0)
        return -errno;
    file->fh = descriptor;
    file->direct_io = 1; /* Otherwise the kernel answers most reads, and they fail too rarely. */
    return 0;
}

static int read_file(const char *path, char *to, size_t size, off_t at, struct fuse_file_info *file)
{
    if (!strcmp(path, bad) && ++reads == 2)
        return -EIO;
    ssize_t done = pread(file->fh, to, size, at);
    return done < 0 ? -errno : (int)done;
}

static int release_file(const char *path, struct fuse_file_info *file)
{
    (void)path;
    close(file->fh);
    return 0;
}

static const struct fuse_operations operations = {
    .getattr = get_attributes, .open = open_file, .read = read_file, .release = release_file};

int main(int count, char **arguments)
{
    folder = arguments[1];
    arguments[1] = arguments[0];
    return fuse_main(count - 1, arguments + 1, &operations, NULL);
}
