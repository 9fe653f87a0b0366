/* A program that does nothing: linked statically it starts faster than any
 * other, so what a launcher adds weighs most. */
int main(void)
{
    return 0;
}
